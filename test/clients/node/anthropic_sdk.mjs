// Anthropic's client for JavaScript.
import Anthropic from "@anthropic-ai/sdk";

import { again, all, baseURL, kindsOf, model, none, question, refused, run, schema } from "./cases.mjs";

const client = new Anthropic({ baseURL, apiKey: "none", timeout: 60_000 }); // and its own retries, as people have it
const tools = [{ name: "look_up", description: "Looks a word up.", input_schema: schema }];
const used = [
  { role: "user", content: question },
  { role: "assistant", content: [{ type: "text", text: "I look." }, { type: "tool_use", id: "t1", name: "look_up", input: { word: "decode" } }] },
  { role: "user", content: [{ type: "tool_result", tool_use_id: "t1", content: "It makes tokens." }] },
];
const asked = (more = {}) => ({ model, max_tokens: 8, system: "Answer briefly.", messages: [{ role: "user", content: question }], ...more });
const message = (more = {}) => client.messages.create(asked(more));
const spoken = (m) => [m.type, m.stop_reason, m.content.map((b) => b.type), m.content[0].text, m.usage.output_tokens];
const streamed = async (more = {}) => {
  const stream = client.messages.stream(asked(more));
  const events = await all(stream);
  return [kindsOf(events), spoken(await stream.finalMessage())];
};
const left = async () => {
  for await (const event of await message({ stream: true, max_tokens: 2000 })) {
    return [event.type]; // the loop's end closes the connection
  }
};
await run("Anthropic for JavaScript", "@anthropic-ai/sdk", {
  all: {
    "/v1/models": { list: async () => (await all(client.models.list())).map((m) => m.id) },
    "/v1/messages": {
      "plain": async () => spoken(await message()),
      "streamed": () => streamed(),
      "tools offered": async () => spoken(await message({ tools })),
      "after a tool's answer": async () => spoken(await message({ tools, messages: used })),
      "client leaves": left,
      "no such model": refused(() => message({ model: none }), 404, none),
      "wrong parameter": refused(() => message({ max_tokens: -1 }), 400, "max_tokens"),
    },
    "/v1/messages/count_tokens": {
      "counted": async () => (await client.messages.countTokens({ model, messages: used.slice(0, 1) })).input_tokens,
    },
  },
  again: { "/v1/messages": { "comes again": again(message) } },
});
