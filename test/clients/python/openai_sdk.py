"""OpenAI's client for Python, on all that it asks of an engine."""

import sys
import time

import openai

import cases
from cases import function, looked, messages, model, none, question, refused, tool

client = openai.OpenAI(base_url=cases.v1, api_key=cases.key, timeout=60)  # and its own retries, as people have it


def chat(**more):
    return client.chat.completions.create(**{"model": model, "messages": messages, "max_tokens": 8, "temperature": 0, **more})


def told(a):
    return [a.object, a.model, a.choices[0].finish_reason, a.choices[0].message.content, a.usage.prompt_tokens, a.usage.completion_tokens]


def streamed(**more):
    chunks = list(chat(stream=True, stream_options={"include_usage": True}, **more))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    return [chunks[0].object, text, [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason], chunks[-1].usage.completion_tokens]


def left():
    with chat(stream=True, max_tokens=2000) as events:
        return [type(next(iter(events))).__name__]


def completion(**more):
    return client.completions.create(**{"model": model, "prompt": question, "max_tokens": 8, "temperature": 0, **more})


def completed():
    a = completion()
    return [a.object, a.choices[0].finish_reason, a.choices[0].text, a.usage.completion_tokens]


def completion_streamed():
    chunks = list(completion(stream=True))
    choices = [c.choices[0] for c in chunks if c.choices]
    return [chunks[0].object, [c.finish_reason for c in choices if c.finish_reason], "".join(c.text or "" for c in choices)]


def response(**more):
    return client.responses.create(**{"model": model, "input": question, "instructions": "Answer briefly.", "max_output_tokens": 16, "temperature": 0, **more})


def responded(r):
    return [r.object, r.status, r.output_text, r.usage.input_tokens, r.usage.output_tokens]


def response_streamed():
    events = list(response(stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    return [list(dict.fromkeys(e.type for e in events)), responded(events[-1].response)]


def response_left():
    with response(stream=True, max_output_tokens=2000) as events:
        return [next(iter(events)).type]


own = {"type": "function", "strict": True, **function}
continued = [
    {"role": "user", "content": question},
    {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"word": "prefill"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "It computes prompts."},
]


def again():
    """It is refused, with when to come again, and comes again by itself."""
    began = time.monotonic()
    told(chat())
    return ["served", time.monotonic() - began >= 0.9]


named = sys.argv[4:] or ["OpenAI for Python", "openai"]  # or what it asks through
cases.run(
    *named,
    all={
        "/v1/models": {"list": lambda: [m.id for m in client.models.list()]},
        "/v1/chat/completions": {
            "plain": lambda: told(chat()),
            "streamed": streamed,
            "tools offered": lambda: told(chat(tools=[tool])),
            "after a tool's answer": lambda: told(chat(tools=[tool], messages=looked)),
            "client leaves": left,
            "no such model": refused(lambda: chat(model=none), openai.NotFoundError, "no-such-model"),
            "wrong parameter": refused(lambda: chat(max_tokens=-1), openai.BadRequestError, "max_tokens"),
        },
        "/v1/completions": {
            "plain": completed,
            "streamed": completion_streamed,
            "no such model": refused(lambda: completion(model=none), openai.NotFoundError, "no-such-model"),
        },
        "/v1/responses": {
            "plain": lambda: responded(response()),
            "streamed": response_streamed,
            "tools offered": lambda: responded(response(tools=[own])),
            "after a tool's answer": lambda: responded(response(tools=[own], input=continued)),
            "client leaves": response_left,
            "unknown previous response": refused(lambda: response(previous_response_id="resp_00000000000000000000000000000001"), openai.APIStatusError),
            "no such model": refused(lambda: response(model=none), openai.NotFoundError, "no-such-model"),
        },
        "/v1/embeddings": {"refused": refused(lambda: client.embeddings.create(model=model, input="one"), openai.APIStatusError)},
    },
    again={"/v1/chat/completions": {"comes again": again}},
)
