"""Runs the cases of one client: a line of JSON for each, with what the client made of the server.

    SCRIPT BASE_URL MODEL PART [CLIENT PACKAGE]

A part is a dict of paths, each with its cases by name. "all" is asked of each server; "again" of one that has no
worker at first. Nothing that is printed has an id or a time.
"""

import importlib.metadata
import json
import sys

base_url, model, part = sys.argv[1:4]
v1 = base_url + "/v1"
key = "sk-clients"  # Baton asks for none; litellm's proxy has to have one
none = model.replace("qwen3", "no-such-model")
question = "What is a prefill worker?"
messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": question}]
schema = {"additionalProperties": False, "properties": {"word": {"maxLength": 8, "type": "string"}}, "required": ["word"], "type": "object"}
function = {"name": "look_up", "description": "Looks a word up.", "parameters": schema}
tool = {"type": "function", "function": function}
looked = [
    messages[1],
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "prefill"}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "It computes prompts."},
]


class Refused(list):
    """What a client saw of a refusal that it has to see."""


def status_of(e):
    return getattr(e, "status_code", None) or getattr(getattr(e, "response", None), "status_code", None)


def refused(call, kind, *words):
    """A case: the call raises an error of the kind, whose text has the words."""
    def run():
        try:
            said = call()
        except kind as e:
            lacks = [w for w in words if w not in str(e)]
            assert not lacks, f"the error does not say {lacks}: {e}"
            return Refused([type(e).__name__, status_of(e)])
        raise AssertionError(f"it is served: {said}")
    return run


def run(client, package, **parts):
    version = importlib.metadata.version(package)
    for path, cases in parts.get(part, {}).items():
        for name, case in cases.items():
            line = {"client": client, "version": version, "path": path, "case": name}
            if part == "again":
                sys.stdin.readline()  # until the server has no worker
            try:
                line["saw"] = case()
                if isinstance(line["saw"], Refused):
                    line["refused"], line["status"] = True, line["saw"][1]
            except Exception as e:  # what the client makes of it is the result
                line["fails"], line["status"] = f"{type(e).__name__}: {str(e)[:600]}", status_of(e)
            print(json.dumps(line, sort_keys=True), flush=True)
