"""Prints the members that an engine's classes of requests declare: a path and a name a line.

members.py vllm|sglang is run by the engine's own Python and imports the classes. A name is
that of the JSON: a member's own and each alias of it. A name that the class takes from the
raw body before it reads its members counts, too. A name with a dot is one within another
member: sampling_params is given as an object of which a class of its own is made.
"""

import ast
import dataclasses
import importlib
import inspect
import sys
import textwrap

CLASSES = {
    "vllm": [
        ("/v1/chat/completions", "", "vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest"),
        ("/v1/completions", "", "vllm.entrypoints.openai.completion.protocol", "CompletionRequest"),
        ("/v1/responses", "", "vllm.entrypoints.openai.responses.protocol", "ResponsesRequest"),
        ("/v1/messages", "", "vllm.entrypoints.anthropic.protocol", "AnthropicMessagesRequest"),
        ("/inference/v1/generate", "", "vllm.entrypoints.scale_out.token_in_token_out.protocol", "GenerateRequest"),
        ("/inference/v1/generate", "sampling_params.", "vllm.sampling_params", "SamplingParams"),
    ],
    "sglang": [
        ("/v1/chat/completions", "", "sglang.srt.entrypoints.openai.protocol", "ChatCompletionRequest"),
        ("/v1/completions", "", "sglang.srt.entrypoints.openai.protocol", "CompletionRequest"),
        ("/v1/responses", "", "sglang.srt.entrypoints.openai.protocol", "ResponsesRequest"),
        ("/v1/messages", "", "sglang.srt.entrypoints.anthropic.protocol", "AnthropicMessagesRequest"),
        ("/generate", "", "sglang.srt.managers.io_struct", "GenerateReqInput"),
        ("/generate", "sampling_params.", "sglang.srt.sampling.sampling_params", "SamplingParams"),
    ],
}


def aliases(field):
    """Yields the other names under which a field of pydantic's is read."""
    for alias in (field.alias, field.validation_alias):
        for choice in getattr(alias, "choices", [alias]):
            # Of a path of names the first is the member's.
            choice = getattr(choice, "path", [choice])[0]
            if choice:
                yield choice


def declared(cls):
    if hasattr(cls, "model_fields"):
        for name, field in cls.model_fields.items():
            yield name
            yield from aliases(field)
    elif dataclasses.is_dataclass(cls):
        yield from (f.name for f in dataclasses.fields(cls) if f.init)
    else:  # a struct of msgspec's
        # A name that begins with an underscore is the engine's own state.
        yield from (n for n in cls.__struct_encode_fields__ if not n.startswith("_"))


def read_raw(cls):
    """Yields the names that the class's validators take from the raw body."""
    found = getattr(getattr(cls, "__pydantic_decorators__", None), "model_validators", {})
    for decorator in found.values():
        if decorator.info.mode != "before":
            continue
        function = inspect.unwrap(getattr(decorator.func, "__func__", decorator.func))
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        body = tree.body[0].args.args[-1 if len(tree.body[0].args.args) < 3 else 1].arg
        for node in ast.walk(tree):
            yield from name_in(node, body)


def name_in(node, body):
    """Yields the name that an expression takes from the variable body: body["name"],
    body.get("name"), "name" in body."""
    name = owner = None
    match node:
        case ast.Subscript(value=owner, slice=name):
            pass
        case ast.Call(func=ast.Attribute(value=owner, attr="get" | "pop" | "setdefault"), args=[name, *_]):
            pass
        case ast.Compare(left=name, ops=[ast.In() | ast.NotIn()], comparators=[owner]):
            pass
    if isinstance(owner, ast.Name) and owner.id == body and isinstance(name, ast.Constant):
        yield name.value


def main():
    lines = set()
    for path, prefix, module, name in CLASSES[sys.argv[1]]:
        cls = getattr(importlib.import_module(module), name)
        lines.update(f"{path} {prefix}{member}" for member in [*declared(cls), *read_raw(cls)])
    print("\n".join(sorted(lines)))


main()
