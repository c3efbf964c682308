"""Anthropic's client for Python."""

import sys
import time

import anthropic

import cases
from cases import model, none, question, refused

client = anthropic.Anthropic(base_url=cases.base_url, api_key=cases.key, timeout=60)  # and its own retries, as people have it
tool = {"name": "look_up", "description": "Looks a word up.", "input_schema": cases.schema}
used = [
    {"role": "user", "content": question},
    {"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"word": "prefill"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "It computes prompts."}]},
]


def asked(**more):
    return {"model": model, "max_tokens": 8, "system": "Answer briefly.", "messages": [{"role": "user", "content": question}], **more}


def message(**more):
    return client.messages.create(**asked(**more))


def spoken(m):
    u = m.usage
    prompt = u.input_tokens + (u.cache_read_input_tokens or 0) + (u.cache_creation_input_tokens or 0)
    return [m.type, m.stop_reason, [b.type for b in m.content], m.content[0].text, prompt, u.output_tokens]


def streamed(**more):
    with client.messages.stream(**asked(**more)) as stream:
        kinds = list(dict.fromkeys(e.type for e in stream))
        return [kinds, spoken(stream.get_final_message())]


def left():
    with message(stream=True, max_tokens=2000) as events:
        return [next(iter(events)).type]


def again():
    """It is refused, with when to come again, and comes again by itself."""
    began = time.monotonic()
    spoken(message())
    return ["served", time.monotonic() - began >= 0.9]


named = sys.argv[4:] or ["Anthropic for Python", "anthropic"]  # or what it asks through
cases.run(
    *named,
    all={
        "/v1/models": {"list": lambda: [m.id for m in client.models.list()]},
        "/v1/messages": {
            "plain": lambda: spoken(message()),
            "streamed": streamed,
            "tools offered": lambda: spoken(message(tools=[tool])),
            "after a tool's answer": lambda: spoken(message(tools=[tool], messages=used)),
            "client leaves": left,
            "no such model": refused(lambda: message(model=none), anthropic.NotFoundError, "no-such-model"),
            "wrong parameter": refused(lambda: message(max_tokens=-1), anthropic.BadRequestError, "max_tokens"),
        },
        "/v1/messages/count_tokens": {
            "counted": lambda: client.messages.count_tokens(model=model, messages=used[:1]).input_tokens,
            "no such model": refused(lambda: client.messages.count_tokens(model=none, messages=used[:1]), anthropic.NotFoundError, "no-such-model"),
        },
    },
    again={"/v1/messages": {"comes again": again}},
)
