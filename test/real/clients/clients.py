"""What clients of others make of a server's /v1/responses and /v1/messages: one line for each call.

    clients.py BASE_URL MODEL

The clients are OpenAI's and Anthropic's for Python, and OpenAI's Agents SDK. Two servers that mean the
same print the same: no ids, no times.
"""

import asyncio
import json
import logging
import sys

import agents
import anthropic
import openai

base_url, model = sys.argv[1:]
open_ai = openai.OpenAI(base_url=base_url + "/v1", api_key="none", max_retries=0, timeout=120)
anthropic_ai = anthropic.Anthropic(base_url=base_url, api_key="none", max_retries=0, timeout=120)
schema = {"additionalProperties": False, "properties": {"word": {"maxLength": 8, "type": "string"}}, "required": ["word"], "type": "object"}

function = {"type": "function", "name": "look_up", "description": "Looks a word up.", "parameters": schema, "strict": True}
called = [
    {"role": "user", "content": "What is a prefill worker?"},
    {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"word": "prefill"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "It computes prompts."},
]


def response(**more):
    return open_ai.responses.create(**{
        "model": model, "input": "What is a prefill worker?", "instructions": "Answer briefly.", "max_output_tokens": 16, "temperature": 0, **more})


def items(r):
    """The items of a response, and what a call of a tool says."""
    return [[i.type, i.name, sorted(json.loads(i.arguments))] if i.type == "function_call" else [i.type] for i in r.output]


def told(r):
    return [type(r).__name__, r.status, items(r), r.usage.input_tokens, r.usage.output_tokens]


def streamed(**more):
    events = list(response(stream=True, **more))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(e.type for e in events))
    return [kinds, told(events[-1].response)]


named = {"tools": [function], "tool_choice": {"type": "function", "name": "look_up"}, "max_output_tokens": 120}
tool = {"name": "look_up", "description": "Looks a word up.", "input_schema": schema, "strict": True}
used = [
    {"role": "user", "content": "What is a prefill worker?"},
    {"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"word": "prefill"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "It computes prompts."}]},
]
forced = {"tools": [tool], "tool_choice": {"type": "tool", "name": "look_up"}, "max_tokens": 120}


def asked(**more):
    return {"model": model, "max_tokens": 16, "system": "Answer briefly.", "extra_body": {"temperature": 0}, "messages": [{"role": "user", "content": "What is a prefill worker?"}], **more}


def message(**more):
    return spoken(anthropic_ai.messages.create(**asked(**more)))


def spoken(m):
    blocks = [[b.type, b.name, sorted(b.input)] if b.type == "tool_use" else [b.type] for b in m.content]
    u = m.usage
    return [type(m).__name__, m.stop_reason, blocks, u.input_tokens + (u.cache_read_input_tokens or 0) + (u.cache_creation_input_tokens or 0), u.output_tokens]


def message_streamed(**more):
    with anthropic_ai.messages.stream(**asked(**more)) as stream:
        kinds = list(dict.fromkeys(e.type for e in stream))
        m = stream.get_final_message()
    return [kinds, m.stop_reason, [b.type for b in m.content], m.usage.output_tokens]


agents.set_tracing_disabled(True)
logging.disable(logging.CRITICAL)  # what a client makes of an error is printed below
looked = []
one_word = {"additionalProperties": False, "properties": {"word": {"enum": ["prefill"], "type": "string"}}, "required": ["word"], "type": "object"}


async def look_up(_, arguments):
    looked.append(sorted(json.loads(arguments)))
    return "It computes prompts."


async def agent(run):
    looked.clear()
    async with openai.AsyncOpenAI(base_url=base_url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        result = await run(agents.Agent(
            name="reader", instructions="Answer briefly.", model=agents.OpenAIResponsesModel(model=model, openai_client=client),
            # No call of the tool has a letter of these; the noise that the model answers soon does, and is whole then.
            model_settings=agents.ModelSettings(temperature=1, max_tokens=200, tool_choice="look_up", extra_body={"stop": ["c", "h", "g", "y"]}),
            tools=[agents.FunctionTool(name="look_up", description="Looks a word up.", params_json_schema=one_word, on_invoke_tool=look_up)]))
    return [[type(i).__name__ for i in result.new_items], looked]


def agent_runs():
    return asyncio.run(agent(lambda a: agents.Runner.run(a, "What is a prefill worker?", max_turns=3)))


def agent_streams():
    async def run(a):
        result = agents.Runner.run_streamed(a, "What is a prefill worker?", max_turns=3)
        async for _ in result.stream_events():
            pass
        return result
    return asyncio.run(agent(run))


def failing(call):
    def run():
        try:
            call()
        except (openai.APIStatusError, anthropic.APIStatusError) as e:
            return [type(e).__name__, e.status_code]
        raise AssertionError("it is served")
    return run


cases = {
    "response": lambda: told(response()),
    "response, streamed": streamed,
    "response of three tokens": lambda: told(response(max_output_tokens=3)),
    "response, a conversation": lambda: told(response(input=[called[0], {"role": "assistant", "content": "It computes."}, {"role": "user", "content": "What?"}])),
    "response, a tool is called": lambda: told(response(**named)),
    "response, a tool is called, streamed": lambda: streamed(**named),
    "response after a tool's answer": lambda: told(response(input=called, tools=[function])),
    "response that is not there": failing(lambda: response(previous_response_id="resp_00000000000000000000000000000001")),
    "response, no such model": failing(lambda: response(model="nobody's")),
    "response, a wrong parameter": failing(lambda: response(temperature=-3)),
    "agent with a tool": agent_runs,
    "agent with a tool, streamed": agent_streams,
    "message": message,
    "message, streamed": message_streamed,
    "message of one token": lambda: message(max_tokens=1),
    "message, a tool is used": lambda: message(**forced),
    "message, a tool is used, streamed": lambda: message_streamed(**forced),
    "message after a tool's answer": lambda: message(messages=used, tools=[tool]),
    "message's tokens counted": lambda: anthropic_ai.messages.count_tokens(model=model, messages=used[:1]).input_tokens,
    "message, no such model": failing(lambda: message(model="nobody's")),
    "message, a wrong parameter": failing(lambda: message(extra_body={"temperature": -3})),
}

for name, run in cases.items():
    try:
        print(f"{name}: {json.dumps(run())}", flush=True)
    except anthropic.APIStatusError as e:
        print(f"{name}: refused {e.status_code} {e.body['error']['type']}" if e.status_code == 501 else f"{name}: FAILS {type(e).__name__}: {str(e)[:400]!r}", flush=True)
    except Exception as e:  # what the client makes of it is the result
        print(f"{name}: FAILS {type(e).__name__}: {str(e)[:400]!r}", flush=True)
