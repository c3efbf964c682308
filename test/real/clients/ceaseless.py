"""A client that asks a server without a pause until standard input ends: a line of JSON for each request.

    ceaseless.py BASE_URL MODEL CLIENT

CLIENT is openai or anthropic: the library of that name for Python. One thread asks for whole answers, one for
streams. The library's own retries are off, so that what fails is seen.
"""

import importlib.metadata
import itertools
import json
import random
import sys
import threading
import time

base_url, model, library = sys.argv[1:]
key = "none"
words = ["prefill", "decode", "worker", "block", "cache", "index", "route", "stream", "token", "engine"]
system = "Answer briefly. " + " ".join(words * 8)
number = itertools.count()
over = threading.Event()
told = threading.Lock()


def question():
    """A prompt of its own, behind a beginning that all share."""
    return f"{time.time_ns()} {next(number)} " + " ".join(random.choices(words, k=120))


class Request:
    """One request, as its client sees it."""

    def __init__(self, path, stream):
        self.line = {"path": path, "stream": stream, "began": time.time(), "begun": False, "whole": False}

    def head(self, headers):
        self.line["decision"], self.line["id"] = headers.get("x-baton-decision"), headers.get("x-request-id")

    def piece(self, text):
        """Something of the answer has come."""
        if text:
            self.line["begun"] = True

    def fails(self, e):
        response = getattr(e, "response", None)
        if response is not None and not self.line.get("id"):
            self.head(response.headers)
        body = getattr(e, "body", None)
        self.line.update(error=f"{type(e).__name__}: {str(e)[:300]}", status=getattr(e, "status_code", None), typed=bool(body))
        cause = e.__cause__
        if cause is not None:
            self.line["error"] += f" ({type(cause).__name__}: {str(cause)[:200]})"

    def tell(self):
        self.line["took"] = time.time() - self.line["began"]
        with told:
            print(json.dumps({"client": f"{library} {version}", **self.line}), flush=True)


version = importlib.metadata.version(library)


def of_openai():
    """What OpenAI's client asks, each a function of a request."""
    import openai

    client = openai.OpenAI(base_url=base_url + "/v1", api_key=key, max_retries=0, default_headers={"x-debug-decision": "1"})

    def chat(**more):
        asked = [{"role": "system", "content": system}, {"role": "user", "content": question()}]
        return client.chat.completions.create(model=model, messages=asked, **more)

    def chat_whole(r):
        a = chat(max_tokens=16)
        r.line["whole"] = bool(a.choices[0].finish_reason)

    def chat_streamed(r):
        with chat(max_tokens=100, stream=True) as events:
            r.head(events.response.headers)
            for e in events:
                for c in e.choices:
                    r.piece(c.delta.content)
                    r.line["whole"] = r.line["whole"] or bool(c.finish_reason)

    def completion_streamed(r):
        with client.completions.create(model=model, prompt=question(), max_tokens=60, stream=True) as events:
            r.head(events.response.headers)
            for e in events:
                for c in e.choices:
                    r.piece(c.text)
                    r.line["whole"] = r.line["whole"] or bool(c.finish_reason)

    def response(**more):
        return client.responses.create(model=model, instructions=system, input=question(), **more)

    def response_whole(r):
        a = response(max_output_tokens=16)
        r.line["whole"] = a.status in ("completed", "incomplete")

    def response_streamed(r):
        with response(max_output_tokens=60, stream=True) as events:
            r.head(events.response.headers)
            for e in events:
                if e.type.endswith(".delta"):
                    r.piece(e.delta)
                if e.type == "error" or e.type == "response.failed":
                    r.line.update(error=str(e)[:300], typed=True)
                r.line["whole"] = e.type in ("response.completed", "response.incomplete")

    return {
        False: [("/v1/chat/completions", chat_whole), ("/v1/responses", response_whole)],
        True: [("/v1/chat/completions", chat_streamed), ("/v1/completions", completion_streamed), ("/v1/responses", response_streamed)],
    }


def of_anthropic():
    """The same of Anthropic's."""
    import anthropic

    client = anthropic.Anthropic(base_url=base_url, api_key=key, max_retries=0, default_headers={"x-debug-decision": "1"})

    def asked(tokens):
        return {"model": model, "max_tokens": tokens, "system": system, "messages": [{"role": "user", "content": question()}]}

    def whole(r):
        r.line["whole"] = bool(client.messages.create(**asked(16)).stop_reason)

    def streamed(r):
        with client.messages.stream(**asked(100)) as events:
            r.head(events.response.headers)
            for e in events:
                if e.type == "text":
                    r.piece(e.text)
                r.line["whole"] = r.line["whole"] or e.type == "message_stop"

    return {False: [("/v1/messages", whole)], True: [("/v1/messages", streamed)]}


def ask(calls, stream):
    for path, call in itertools.cycle(calls):
        if over.is_set():
            return
        r = Request(path, stream)
        try:
            call(r)
        except Exception as e:  # what the client makes of it is the result
            r.fails(e)
        r.tell()
        if not r.line["whole"]:
            over.wait(0.5)


calls = {"openai": of_openai, "anthropic": of_anthropic}[library]()
threads = [threading.Thread(target=ask, args=(calls[stream], stream)) for stream in calls]
for t in threads:
    t.start()
sys.stdin.read()
over.set()
for t in threads:
    t.join()
