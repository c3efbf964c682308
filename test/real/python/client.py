"""What OpenAI's client for Python makes of a server: one line for each case.

    client.py BASE_URL MODEL

Two servers that mean the same print the same: no ids, no times, no noise of the model.
"""

import json
import sys

import openai
from pydantic import BaseModel

base_url, model = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=120)
say = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "What is a prefill worker?"}]
tool = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"additionalProperties": False, "properties": {"word": {"maxLength": 8, "type": "string"}}, "required": ["word"], "type": "object"},
    },
}


class Word(BaseModel):
    short: bool


def shape(value):
    """The value's types, and the lengths of its lists."""
    if isinstance(value, BaseModel):
        return {type(value).__name__: {k: shape(v) for k, v in value if v is not None}}
    if isinstance(value, list):
        return [shape(value[0]), len(value)] if value else []
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items()}
    return type(value).__name__


def usage(u):
    return [u.prompt_tokens, u.completion_tokens, u.total_tokens]


def chat(**more):
    return client.chat.completions.create(model=model, messages=say, **{"max_tokens": 8, "temperature": 0, **more})


def plain():
    a = chat()
    return [shape(a), usage(a.usage), a.choices[0].finish_reason, a.model]


def streamed():
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    kinds = sorted({json.dumps(shape(c.choices[0].delta), sort_keys=True) for c in chunks if c.choices})
    return [type(chunks[0]).__name__, kinds, usage(chunks[-1].usage), [c.choices[0].finish_reason for c in chunks if c.choices][-1]]


def completion():
    a = client.completions.create(model=model, prompt="A prefill worker is", max_tokens=8, temperature=0)
    return [shape(a), usage(a.usage)]


def completion_streamed():
    chunks = list(client.completions.create(model=model, prompt="A prefill worker is", max_tokens=8, temperature=0, stream=True))
    return [type(chunks[0]).__name__, chunks[-1].choices[0].finish_reason, "".join(c.choices[0].text for c in chunks)]


def tools():
    named = {"type": "function", "function": {"name": "look_up"}}
    a = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hi"}], tools=[tool], tool_choice=named, max_tokens=120, temperature=0)
    call = a.choices[0].message.tool_calls[0]
    return [type(call).__name__, call.function.name, call.function.arguments]


def logprobs():
    a = chat(logprobs=True, top_logprobs=3)
    return [shape(a.choices[0].logprobs), len(a.choices[0].logprobs.content)]


def several():
    return [len(chat(n=3, temperature=1, seed=1).choices)]


def schema():
    a = client.chat.completions.parse(model=model, messages=say, temperature=0, max_tokens=40, response_format=Word)
    return [type(a.choices[0].message.parsed).__name__]


def cancelled():
    with chat(stream=True, max_tokens=200) as events:
        first = next(iter(events))
    return [type(first).__name__]


def failing(call):
    def run():
        try:
            call()
        except openai.APIStatusError as e:
            return [type(e).__name__, e.status_code]
        except openai.OpenAIError as e:
            return [type(e).__name__]
        return ["served"]
    return run


cases = {
    "chat": plain,
    "chat, streamed": streamed,
    "completion": completion,
    "completion, streamed": completion_streamed,
    "tools": tools,
    "logprobs": logprobs,
    "n": several,
    "JSON schema": schema,
    "cancelled": cancelled,
    "models": lambda: [m.id for m in client.models.list()],
    "time-out": failing(lambda: client.with_options(timeout=0.05).chat.completions.create(model=model, messages=say, max_tokens=300)),
    "no such model": failing(lambda: client.chat.completions.create(model="nobody's", messages=say)),
    "over the context": failing(lambda: client.completions.create(model=model, prompt="long " * 9000, max_tokens=4)),
    "a wrong parameter": failing(lambda: chat(temperature=-3)),
    "a wrong role": failing(lambda: client.chat.completions.create(model=model, messages=[{"role": 7, "content": "x"}])),
    "no messages": failing(lambda: client.chat.completions.create(model=model, messages=[])),
}

for name, run in cases.items():
    try:
        print(f"{name}: {json.dumps(run(), sort_keys=True)}", flush=True)
    except Exception as e:  # what the client makes of it is the result
        print(f"{name}: {type(e).__name__}: {str(e)[:300]}", flush=True)
