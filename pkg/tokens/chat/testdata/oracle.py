"""Renders chat requests with Python, as transformers, vLLM and SGLang do.

One JSON object a line in: {"caller": …, "template": …, "specials": {…}, "request": {…}}; one
line out: {"text": …} or {"raises": true}. The tests in Go compare what they render with it.
"""

import functools
import json
import sys
from types import SimpleNamespace

from transformers.utils.chat_template_utils import render_jinja_template


def transformers(template, specials, q):
    kwargs = {**specials, **(q.get("chat_template_kwargs") or {})}
    add, go_on = q.get("add_generation_prompt", False), q.get("continue_final_message", False)
    if add and go_on:
        raise ValueError("both")
    if not q["messages"]:
        raise ValueError("none")
    texts, _ = render_jinja_template(
        conversations=[q["messages"]],
        tools=q.get("tools"),
        documents=q.get("documents"),
        chat_template=template,
        add_generation_prompt=add,
        continue_final_message=go_on,
        **kwargs,
    )
    return texts[0]


@functools.cache
def tokenizer(specials):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **dict(specials))


def vllm(template, specials, q):
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers import chat_utils, hf

    # Pictures need a model; what the template sees of them does not.
    chat_utils.MultiModalContentParser.parse_image = lambda self, image, uuid=None: None
    chat_utils.MultiModalItemTracker.resolve_items = lambda self: (None, None)

    request = ChatCompletionRequest.model_validate(q)
    config = SimpleNamespace(enable_prompt_embeds=False, multimodal_config=None)
    tools = None if request.tools is None else [t.model_dump() for t in request.tools]
    conversation, _, _ = chat_utils.parse_chat_messages(
        request.messages, config, content_format=hf._detect_content_format(template, default="string")
    )
    params = request.build_chat_params(template, "auto").with_defaults({"tools": tools, "tokenize": False})
    return hf.safe_apply_chat_template(
        config,
        tokenizer(tuple(sorted(specials.items()))),
        conversation,
        **params.get_apply_chat_template_kwargs(),
    )


class Rendered(BaseException):
    """Carries a text out of SGLang's code, past its handlers of exceptions."""


def sglang(template, specials, q):
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
    from sglang.srt.parser import jinja_template_utils

    request = ChatCompletionRequest.model_validate(q)
    tok = tokenizer(tuple(sorted(specials.items())))

    def render(messages, *, tools, template_kwargs, add_generation_prompt=True, **_):
        text = tok.apply_chat_template(
            messages,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            return_dict=False,
            **template_kwargs,
        )
        raise Rendered(text)

    # The server without its engine: what stands between a request and its template.
    s = OpenAIServingChat.__new__(OpenAIServingChat)
    s.template_manager = SimpleNamespace(
        jinja_template_content_format=jinja_template_utils.detect_jinja_template_content_format(template),
        jinja_template_may_reorder_tool_results=jinja_template_utils.jinja_template_may_reorder_tool_results(template),
        reasoning_config=None,
    )
    s.chat_encoding_spec = s._encoding_adapter = None
    s.is_minimax_m3 = s._prompt_text_round_trip_is_lossy = s._tokenizer_auto_adds_specials = False
    s._thinking_requested = lambda r: False
    s._encode_messages = lambda *a, **k: None
    s._render_and_encode_chat_template = render
    tools = None
    if request.tools and request.tool_choice != "none":
        tools = [t.model_dump() for t in request.tools]
    try:
        s._apply_jinja_template(request, tools, False)
    except Rendered as r:
        return r.args[0]
    raise ValueError("nothing was rendered")


callers = {"transformers": transformers, "vllm": vllm, "sglang": sglang}
for line in sys.stdin:
    q = json.loads(line)
    try:
        a = {"text": callers[q["caller"]](q["template"], q["specials"], q["request"])}
    except Exception as e:  # whatever Python raises, the other side has to raise too
        a = {"raises": True, "why": f"{type(e).__name__}: {e}"[:300]}
    print("=" + json.dumps(a), flush=True)
