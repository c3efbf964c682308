// What OpenAI's and Anthropic's clients for JavaScript make of a server's /v1/responses and /v1/messages:
// one line for each call.
//
//     node clients.mjs BASE_URL MODEL
//
// Two servers that mean the same print the same: no ids, no times.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const openAI = new OpenAI({ baseURL: baseURL + "/v1", apiKey: "none", maxRetries: 0, timeout: 120_000 });
const anthropic = new Anthropic({ baseURL, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const schema = { additionalProperties: false, properties: { word: { maxLength: 8, type: "string" } }, required: ["word"], type: "object" };

const asked = (more = {}) => ({ model, input: "What is a decode worker?", instructions: "Answer briefly.", max_output_tokens: 16, temperature: 0, ...more });
const items = (r) => r.output.map((i) => (i.type === "function_call" ? [i.type, i.name, Object.keys(JSON.parse(i.arguments))] : [i.type]));
const told = (r) => [r.object, r.status, items(r), r.usage.input_tokens, r.usage.output_tokens];
const kindsOf = (events) => [...new Set(events.map((e) => e.type))];
const all = async (stream) => {
  const out = [];
  for await (const event of stream) out.push(event);
  return out;
};
const streamed = async (more) => {
  const events = await all(await openAI.responses.create(asked({ stream: true, ...more })));
  return [kindsOf(events), told(events.at(-1).response)];
};
const named = {
  tools: [{ type: "function", name: "look_up", description: "Looks a word up.", parameters: schema, strict: true }],
  tool_choice: { type: "function", name: "look_up" }, max_output_tokens: 120,
};

const say = (more = {}) => ({ model, max_tokens: 16, system: "Answer briefly.", temperature: 0, messages: [{ role: "user", content: "What is a decode worker?" }], ...more });
const spoken = (m) => [m.type, m.stop_reason, m.content.map((b) => (b.type === "tool_use" ? [b.type, b.name, Object.keys(b.input)] : [b.type])), m.usage.output_tokens];
const helped = async (more) => {
  const stream = anthropic.messages.stream(say(more));
  const events = await all(stream);
  return [kindsOf(events), spoken(await stream.finalMessage())];
};
const forced = { tools: [{ name: "look_up", description: "Looks a word up.", input_schema: schema, strict: true }], tool_choice: { type: "tool", name: "look_up" }, max_tokens: 120 };

const failing = async (call) => {
  try {
    await call();
  } catch (e) {
    if (e.status) return [e.constructor.name, e.status];
    throw e;
  }
  throw new Error("it is served");
};

const cases = {
  "response": async () => told(await openAI.responses.create(asked())),
  "response, streamed": () => streamed(),
  "response, a tool is called": async () => told(await openAI.responses.create(asked(named))),
  "response, a tool is called, streamed": () => streamed(named),
  "response, the client's own helper": async () => {
    const stream = openAI.responses.stream(asked());
    await all(stream);
    return told(await stream.finalResponse());
  },
  "response, no such model": () => failing(() => openAI.responses.create(asked({ model: "nobody's" }))),
  "message": async () => spoken(await anthropic.messages.create(say())),
  "message, streamed": async () => kindsOf(await all(await anthropic.messages.create(say({ stream: true })))),
  "message, the client's own helper": () => helped(),
  "message, a tool is used": async () => spoken(await anthropic.messages.create(say(forced))),
  "message, a tool is used, streamed": () => helped(forced),
  "message's tokens counted": async () => (await anthropic.messages.countTokens({ model, messages: say().messages })).input_tokens,
  "message, no such model": () => failing(() => anthropic.messages.create(say({ model: "nobody's" }))),
};

for (const [name, run] of Object.entries(cases)) {
  try {
    console.log(`${name}: ${JSON.stringify(await run())}`);
  } catch (e) {
    const says = e.status === 501 && e.error?.type === "error" ? `refused 501 ${e.error.error.type}` : `FAILS ${e.constructor.name}: ${String(e.message).slice(0, 400)}`;
    console.log(`${name}: ${says}`);
  }
}
