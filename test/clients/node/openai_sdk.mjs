// OpenAI's client for JavaScript.
import OpenAI from "openai";

import { again, all, kindsOf, model, none, question, refused, run, schema, v1 } from "./cases.mjs";

const client = new OpenAI({ baseURL: v1, apiKey: "none", timeout: 60_000 }); // and its own retries, as people have it
const messages = [{ role: "system", content: "Answer briefly." }, { role: "user", content: question }];
const look = { name: "look_up", description: "Looks a word up.", parameters: schema };
const tools = [{ type: "function", function: look }];
const looked = [
  messages[1],
  { role: "assistant", content: null, tool_calls: [{ id: "c1", type: "function", function: { name: "look_up", arguments: '{"word": "decode"}' } }] },
  { role: "tool", tool_call_id: "c1", content: "It makes tokens." },
];

const chat = (more = {}) => client.chat.completions.create({ model, messages, max_tokens: 8, temperature: 0, ...more });
const told = (a) => [a.object, a.choices[0].finish_reason, a.choices[0].message.content, a.usage.completion_tokens];
const streamed = async () => {
  const stream = client.chat.completions.stream({ model, messages, max_tokens: 8, temperature: 0, stream_options: { include_usage: true } });
  return told(await stream.finalChatCompletion());
};
const left = async (stream) => {
  for await (const event of await stream) {
    return [event.object ?? event.type]; // the loop's end closes the connection
  }
};

const completion = (more = {}) => client.completions.create({ model, prompt: question, max_tokens: 8, temperature: 0, ...more });
const response = (more = {}) => client.responses.create({ model, input: question, instructions: "Answer briefly.", max_output_tokens: 16, temperature: 0, ...more });
const responded = (r) => [r.object, r.status, r.output_text, r.usage.input_tokens, r.usage.output_tokens];
const responseStreamed = async () => {
  const events = await all(await response({ stream: true }));
  return [kindsOf(events), events.at(-1).response.status];
};
const own = [{ type: "function", strict: true, ...look }];

await run("OpenAI for JavaScript", "openai", {
  all: {
    "/v1/models": { list: async () => (await all(client.models.list())).map((m) => m.id) },
    "/v1/chat/completions": {
      "plain": async () => told(await chat()),
      "streamed": streamed,
      "tools offered": async () => told(await chat({ tools })),
      "after a tool's answer": async () => told(await chat({ tools, messages: looked })),
      "client leaves": () => left(chat({ stream: true, max_tokens: 2000 })),
      "no such model": refused(() => chat({ model: none }), 404, none),
      "wrong parameter": refused(() => chat({ max_tokens: -1 }), 400, "max_tokens"),
    },
    "/v1/completions": {
      "plain": async () => (await completion()).choices[0].text,
      "streamed": async () => (await all(await completion({ stream: true }))).map((c) => c.choices[0].text).join(""),
      "no such model": refused(() => completion({ model: none }), 404, none),
    },
    "/v1/responses": {
      "plain": async () => responded(await response()),
      "streamed": responseStreamed,
      "tools offered": async () => responded(await response({ tools: own })),
      "client leaves": () => left(response({ stream: true, max_output_tokens: 2000 })),
      "no such model": refused(() => response({ model: none }), 404, none),
    },
    "/v1/embeddings": { refused: refused(() => client.embeddings.create({ model, input: "one" }), [404, 501]) },
  },
  again: { "/v1/chat/completions": { "comes again": again(chat) } },
});
