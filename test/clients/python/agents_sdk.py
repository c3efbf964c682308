"""OpenAI's Agents SDK, on responses and on chats."""

import asyncio
import json
import logging

import agents
import openai

import cases
from cases import model, question, refused

agents.set_tracing_disabled(True)
logging.disable(logging.CRITICAL)  # what it makes of an error is the result
looked = []
one_word = {"additionalProperties": False, "properties": {"word": {"enum": ["prefill"], "type": "string"}}, "required": ["word"], "type": "object"}


async def look_up(_, arguments):
    looked.append(sorted(json.loads(arguments)))
    return "It computes prompts."


def agent(api, run, name=model, **settings):
    """What a run of an agent leaves behind."""
    async def body():
        looked.clear()
        async with openai.AsyncOpenAI(base_url=cases.v1, api_key="none", timeout=60) as client:
            result = await run(agents.Agent(
                name="reader", instructions="Answer briefly.", model=api(model=name, openai_client=client),
                model_settings=agents.ModelSettings(**{"temperature": 0, **settings}),
                tools=[agents.FunctionTool(name="look_up", description="Looks a word up.", params_json_schema=one_word, on_invoke_tool=look_up)]))
        return [[type(i).__name__ for i in result.new_items], looked, result.final_output]
    return asyncio.run(body())


async def whole(a):
    return await agents.Runner.run(a, question, max_turns=3)


async def streamed(a):
    result = agents.Runner.run_streamed(a, question, max_turns=3)
    async for _ in result.stream_events():
        pass
    return result


def leaving(api):
    """The client leaves at the stream's first event."""
    async def body():
        async with openai.AsyncOpenAI(base_url=cases.v1, api_key="none", timeout=60) as client:
            result = agents.Runner.run_streamed(agents.Agent(
                name="reader", model=api(model=model, openai_client=client), model_settings=agents.ModelSettings(max_tokens=2000)), question)
            async for event in result.stream_events():
                if event.type == "raw_response_event":
                    result.cancel()
                    return [event.type]
    return asyncio.run(body())


def of(api):
    return {
        "a run": lambda: agent(api, whole),
        "a run, streamed": lambda: agent(api, streamed),
        "client leaves": lambda: leaving(api),
        "no such model": refused(lambda: agent(api, whole, name="no-such-model"), openai.NotFoundError, "no-such-model"),
        "wrong parameter": refused(lambda: agent(api, whole, max_tokens=-1), openai.BadRequestError, "max"),
    }


responses, chats = agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel
cases.run(
    "OpenAI Agents SDK", "openai-agents",
    all={"/v1/responses": of(responses), "/v1/chat/completions": of(chats)},
)
