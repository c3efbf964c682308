"""litellm as a library: the providers by which people reach an engine of their own."""

import asyncio

import litellm

import cases
from cases import looked, messages, model, question, refused, tool

litellm.suppress_debug_info = True
common = {"api_key": "none", "timeout": 60}


def of(provider):
    base = cases.base_url if provider == "anthropic" else cases.v1

    def chat(name=model, **more):
        return litellm.completion(**{"model": f"{provider}/{name}", "api_base": base, "messages": messages, "max_tokens": 16, "temperature": 0, **common, **more})

    def streamed():
        chunks = list(chat(stream=True, stream_options={"include_usage": True}))
        whole = litellm.stream_chunk_builder(chunks, messages=messages)
        return told(whole)

    def left():
        stream = chat(stream=True, max_tokens=2000)
        first = next(iter(stream))
        stream.completion_stream.close()
        return [type(first).__name__]

    return {
        "plain": lambda: told(chat()),
        "streamed": streamed,
        "tools offered": lambda: told(chat(tools=[tool])),
        "after a tool's answer": lambda: told(chat(tools=[tool], messages=looked)),
        "client leaves": left,
        "no such model": refused(lambda: chat("no-such-model"), litellm.NotFoundError, "no-such-model"),
        "wrong parameter": refused(lambda: chat(max_tokens=-1), litellm.BadRequestError, "max"),
    }


def told(a):
    return [a.object, a.choices[0].finish_reason, a.choices[0].message.content, a.usage.prompt_tokens, a.usage.completion_tokens]


def completion(name=model, **more):
    return litellm.text_completion(model=f"text-completion-openai/{name}", api_base=cases.v1, prompt=question, max_tokens=8, temperature=0, **common, **more)


def completion_streamed():
    return "".join(c.choices[0].text or "" for c in completion(stream=True))


def response(name=model, **more):
    return litellm.responses(model=f"openai/{name}", api_base=cases.v1, input=question, max_output_tokens=16, temperature=0, **common, **more)


def response_streamed():
    events = list(response(stream=True))
    return [list(dict.fromkeys(str(getattr(e.type, "value", e.type)) for e in events)), events[-1].response.status]


def message(name=model, **more):
    return asyncio.run(litellm.anthropic.messages.acreate(
        model=f"anthropic/{name}", api_base=cases.base_url, messages=[messages[1]], max_tokens=16, **common, **more))


def spoken():
    m = message()
    return [m["type"], m["stop_reason"], m["content"][0]["text"]]


openai, hosted, anthropic = of("openai"), of("hosted_vllm"), of("anthropic")
cases.run(
    "litellm, openai/", "litellm",
    all={
        "/v1/chat/completions": openai,
        "/v1/completions": {
            "plain": lambda: completion().choices[0].text,
            "streamed": completion_streamed,
            "no such model": refused(lambda: completion("no-such-model"), litellm.NotFoundError, "no-such-model"),
        },
        "/v1/responses": {
            "plain": lambda: [response().status],
            "streamed": response_streamed,
            "no such model": refused(lambda: response("no-such-model"), litellm.NotFoundError, "no-such-model"),
        },
        "/v1/embeddings": {"refused": refused(lambda: litellm.embedding(model=f"openai/{model}", api_base=cases.v1, input=["one"], **common), Exception)},
    },
)
cases.run("litellm, hosted_vllm/", "litellm", all={"/v1/chat/completions": hosted})
cases.run("litellm, anthropic/", "litellm", all={"/v1/messages": anthropic | {"as Anthropic's": spoken}})
