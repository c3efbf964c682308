"""LangChain, with its models of OpenAI's and Anthropic's APIs."""

import time

import anthropic
import openai
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

import cases
from cases import model, question, refused

of_openai = {"base_url": cases.v1, "api_key": "none", "timeout": 60}
chats = [SystemMessage("Answer briefly."), HumanMessage(question)]
looked = [
    HumanMessage(question),
    AIMessage("", tool_calls=[{"id": "c1", "name": "look_up", "args": {"word": "prefill"}}]),
    ToolMessage("It computes prompts.", tool_call_id="c1"),
]


@tool
def look_up(word: str) -> str:
    """Looks a word up."""
    return "It computes prompts."


def chat(**more):
    return ChatOpenAI(**{"model": model, "max_tokens": 16, "temperature": 0, "stream_usage": True, **of_openai, **more})


def response(**more):
    return chat(use_responses_api=True, **more)


def message(**more):
    return ChatAnthropic(**{"model": model, "max_tokens": 16, "base_url": cases.base_url, "api_key": "none", "timeout": 60, **more})


def told(m):
    return [type(m).__name__, m.text, m.usage_metadata["input_tokens"], m.usage_metadata["output_tokens"], [c["name"] for c in m.tool_calls]]


def streamed(of):
    chunks = list(of.stream(chats))
    whole = chunks[0]
    for c in chunks[1:]:
        whole += c
    return told(whole)


def left(of):
    events = of.stream(chats)
    first = next(events)
    events.close()
    return [type(first).__name__]


def agent(of):
    said = create_agent(of, [look_up], system_prompt="Answer briefly.").invoke({"messages": [("user", question)]})
    return [[type(m).__name__ for m in said["messages"]], said["messages"][-1].text]


def tests(of, error):
    return {
        "plain": lambda: told(of().invoke(chats)),
        "streamed": lambda: streamed(of()),
        "a batch": lambda: [told(m) for m in of().batch([chats, looked])],
        "tools offered": lambda: told(of().bind_tools([look_up]).invoke(chats)),
        "after a tool's answer": lambda: told(of().bind_tools([look_up]).invoke(looked)),
        "an agent": lambda: agent(of()),
        "client leaves": lambda: left(of(max_tokens=2000)),
        "no such model": refused(lambda: of(model="no-such-model").invoke(chats), error.NotFoundError, "no-such-model"),
        "wrong parameter": refused(lambda: of(max_tokens=-1).invoke(chats), error.BadRequestError, "max"),
    }


def again(of):
    def run():
        began = time.monotonic()
        of().invoke(chats)
        return ["served", time.monotonic() - began >= 0.9]
    return {"comes again": run}


def completion(**more):
    return OpenAI(**{"model": model, "max_tokens": 8, "temperature": 0, **of_openai, **more})


cases.run(
    "LangChain (langchain-openai)", "langchain-openai",
    all={
        "/v1/chat/completions": tests(chat, openai),
        "/v1/responses": tests(response, openai),
        "/v1/completions": {
            "plain": lambda: completion().invoke(question),
            "streamed": lambda: "".join(completion().stream(question)),
            "no such model": refused(lambda: completion(model="no-such-model").invoke(question), openai.NotFoundError, "no-such-model"),
        },
        "/v1/embeddings": {"refused": refused(lambda: OpenAIEmbeddings(model=model, check_embedding_ctx_length=False, **of_openai).embed_query("one"), openai.APIStatusError)},
    },
    again={"/v1/chat/completions": again(chat)},
)
cases.run(
    "LangChain (langchain-anthropic)", "langchain-anthropic",
    all={"/v1/messages": tests(message, anthropic)},
    again={"/v1/messages": again(message)},
)
