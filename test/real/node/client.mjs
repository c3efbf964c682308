// What OpenAI's client for JavaScript makes of a server: one line for each case.
//
//     node client.mjs BASE_URL MODEL
//
// Two servers that mean the same print the same: no ids, no times, no noise of the model.
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const messages = [{ role: "system", content: "Answer briefly." }, { role: "user", content: "What is a decode worker?" }];
const chat = (more = {}, options = {}) =>
  client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 8, ...more }, options);
const tool = {
  type: "function",
  function: {
    name: "look_up",
    description: "Looks a word up.",
    parameters: { additionalProperties: false, properties: { word: { maxLength: 8, type: "string" } }, required: ["word"], type: "object" },
  },
};
const short = { type: "object", properties: { short: { type: "boolean" } }, required: ["short"], additionalProperties: false };
const usage = (u) => [u.prompt_tokens, u.completion_tokens, u.total_tokens];
const failing = async (call) => {
  try {
    await call();
  } catch (e) {
    return [e.constructor.name, e.status ?? null];
  }
  return ["served"];
};
const all = async (stream) => {
  const out = [];
  for await (const chunk of stream) out.push(chunk);
  return out;
};

const cases = {
  "chat": async () => {
    const a = await chat();
    return [Object.keys(a).sort(), usage(a.usage), a.choices[0].finish_reason, a.choices[0].message.content];
  },
  "chat, streamed": async () => {
    const chunks = await all(await chat({ stream: true, stream_options: { include_usage: true } }));
    return [chunks[0].object, usage(chunks.at(-1).usage), chunks.map((c) => c.choices[0]?.delta?.content ?? "").join("")];
  },
  "completion, streamed": async () => {
    const chunks = await all(await client.completions.create({ model, prompt: "A decode worker is", max_tokens: 8, temperature: 0, stream: true }));
    return [chunks[0].object, chunks.at(-1).choices[0].finish_reason, chunks.map((c) => c.choices[0].text).join("")];
  },
  "tools": async () => {
    const named = { type: "function", function: { name: "look_up" } };
    const a = await chat({ messages: [{ role: "user", content: "hi" }], tools: [tool], tool_choice: named, max_tokens: 120 });
    const [call] = a.choices[0].message.tool_calls;
    return [call.type, call.function.name, call.function.arguments];
  },
  "JSON schema": async () => {
    const a = await client.chat.completions.parse({
      model, messages, temperature: 0, max_tokens: 40, response_format: { type: "json_schema", json_schema: { name: "short", strict: true, schema: short } },
    });
    return Object.keys(JSON.parse(a.choices[0].message.content));
  },
  "logprobs": async () => (await chat({ logprobs: true, top_logprobs: 2 })).choices[0].logprobs.content.map((t) => t.top_logprobs.length),
  "n": async () => (await chat({ n: 2, temperature: 1, seed: 1 })).choices.length,
  "cancelled": async () => {
    const stream = await chat({ stream: true, max_tokens: 200 });
    for await (const chunk of stream) {
      stream.controller.abort();
      return chunk.object;
    }
  },
  "time-out": () => failing(() => chat({ max_tokens: 300 }, { timeout: 50 })),
  "no such model": () => failing(() => chat({ model: "nobody's" })),
  "a wrong parameter": () => failing(() => chat({ temperature: -3 })),
  "over the context": () => failing(() => client.completions.create({ model, prompt: "long ".repeat(9000), max_tokens: 4 })),
};

for (const [name, run] of Object.entries(cases)) {
  try {
    console.log(`${name}: ${JSON.stringify(await run())}`);
  } catch (e) {
    console.log(`${name}: ${e.constructor.name}: ${String(e.message).slice(0, 300)}`);
  }
}
