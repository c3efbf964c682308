// Vercel's AI SDK, with its providers for OpenAI, for servers like OpenAI's, and for Anthropic.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, generateText, jsonSchema, streamText, tool } from "ai";

import { again, model, none, question, refused, run, schema, v1 } from "./cases.mjs";

const compatible = createOpenAICompatible({ name: "baton", baseURL: v1, apiKey: "none", includeUsage: true });
const openAI = createOpenAI({ baseURL: v1, apiKey: "none" });
const anthropic = createAnthropic({ baseURL: v1, apiKey: "none" });

const lookUp = tool({ description: "Looks a word up.", inputSchema: jsonSchema(schema) });
const asked = (of, more = {}) => ({ model: of(model), system: "Answer briefly.", prompt: question, maxOutputTokens: 16, temperature: 0, ...more });
const told = async (r) => [await r.text, await r.finishReason, (await r.usage).inputTokens, (await r.usage).outputTokens, (await r.toolCalls).map((c) => c.toolName)];
const streamed = async (of) => {
  let failed;
  const r = streamText(asked(of, { onError: ({ error }) => (failed = error) }));
  let text = "";
  for await (const piece of r.textStream) text += piece;
  if (failed) throw failed;
  return [text, await told(r)];
};
const left = async (of) => {
  const end = new AbortController();
  let failed = new Error("nothing came");
  const r = streamText(asked(of, { maxOutputTokens: 2000, abortSignal: end.signal, onError: ({ error }) => (failed = error) }));
  for await (const piece of r.textStream) {
    end.abort();
    return [typeof piece];
  }
  throw failed;
};
const looked = [
  { role: "user", content: question },
  { role: "assistant", content: [{ type: "tool-call", toolCallId: "c1", toolName: "look_up", input: { word: "decode" } }] },
  { role: "tool", content: [{ type: "tool-result", toolCallId: "c1", toolName: "look_up", output: { type: "text", value: "It makes tokens." } }] },
];

const tests = (of) => ({
  "plain": async () => told(await generateText(asked(of))),
  "streamed": () => streamed(of),
  "tools offered": async () => told(await generateText(asked(of, { tools: { look_up: lookUp } }))),
  "after a tool's answer": async () => told(await generateText(asked(of, { prompt: undefined, messages: looked, tools: { look_up: lookUp } }))),
  "client leaves": () => left(of),
  "no such model": refused(() => generateText({ ...asked(of), model: of(none) }), 404, none),
});
const comes = (of) => ({ "comes again": again(() => generateText(asked(of))) });
await run("AI SDK (@ai-sdk/openai-compatible)", "@ai-sdk/openai-compatible", {
  all: {
    "/v1/chat/completions": tests((m) => compatible(m)),
    "/v1/completions": { plain: async () => (await generateText({ model: compatible.completionModel(model), prompt: question, maxOutputTokens: 8, temperature: 0 })).text },
    "/v1/embeddings": { refused: refused(() => embed({ model: compatible.embeddingModel(model), value: "one" }), [404, 501]) },
  },
  again: { "/v1/chat/completions": comes((m) => compatible(m)) },
});
await run("AI SDK (@ai-sdk/openai)", "@ai-sdk/openai", {
  all: { "/v1/chat/completions": tests((m) => openAI.chat(m)), "/v1/responses": tests((m) => openAI.responses(m)) },
  again: { "/v1/responses": comes((m) => openAI.responses(m)) },
});
await run("AI SDK (@ai-sdk/anthropic)", "@ai-sdk/anthropic", {
  all: { "/v1/messages": tests((m) => anthropic(m)) },
  again: { "/v1/messages": comes((m) => anthropic(m)) },
});
