"""locust's users: plain and streamed chats, completions, and one that leaves in the middle."""

import json
import os

from locust import HttpUser, task

model = os.environ["MODEL"]


class Reader(HttpUser):
    asked = 0

    def body(self, **more):
        self.asked += 1
        return {"model": model, "max_tokens": 8, "temperature": 0, **more}

    def say(self):
        return [{"role": "user", "content": f"What is a prefill worker, for the time {self.asked}?"}]

    @task(3)
    def chat(self):
        with self.client.post("/v1/chat/completions", json=self.body(messages=self.say()), name="chat", catch_response=True) as r:
            if not r.ok or r.json()["usage"]["completion_tokens"] != 8:
                r.failure(f"{r.status_code} {r.text[:200]}")

    @task(3)
    def stream(self):
        with self.client.post("/v1/chat/completions", json=self.body(messages=self.say(), stream=True), name="stream", stream=True, catch_response=True) as r:
            events = [line[6:] for line in r.iter_lines() if line.startswith(b"data: ")] if r.ok else []
            if not events or events[-1] != b"[DONE]" or not json.loads(events[0])["choices"]:
                r.failure(f"{r.status_code}: {len(events)} events")

    @task(2)
    def completion(self):
        with self.client.post("/v1/completions", json=self.body(prompt="A prefill worker is"), name="completion", catch_response=True) as r:
            if not r.ok or not r.json()["choices"][0]["text"]:
                r.failure(f"{r.status_code} {r.text[:200]}")

    @task(1)
    def leave(self):
        with self.client.post("/v1/chat/completions", json=self.body(messages=self.say(), stream=True, max_tokens=2000), name="leave", stream=True, catch_response=True) as r:
            if not r.ok or not next(r.iter_lines()):
                r.failure(f"{r.status_code}")
            r.close()
