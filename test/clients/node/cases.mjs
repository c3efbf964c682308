// Runs the cases of one client: a line of JSON for each, with what the client made of the server. See
// ../python/cases.py.
import { readSync } from "node:fs";
import { createRequire } from "node:module";

export const [baseURL, model, part] = process.argv.slice(2);
export const v1 = baseURL + "/v1";
export const question = "What is a decode worker?";
export const none = "no-such-model";
export const schema = { additionalProperties: false, properties: { word: { maxLength: 8, type: "string" } }, required: ["word"], type: "object" };

class Refused extends Array {}

// refused is a case: the call fails with a status of these, and the error's text has the words.
export const refused = (call, statuses, ...words) => async () => {
  let said;
  try {
    said = await call();
  } catch (e) {
    if (![statuses].flat().includes(statusOf(e))) throw e;
    const lacks = words.filter((w) => !String(e.message).includes(w));
    if (lacks.length) throw new Error(`the error does not say ${lacks}: ${e.message}`);
    return Refused.of(e.constructor.name, statusOf(e));
  }
  throw new Error(`it is served: ${JSON.stringify(said)}`);
};

// again is a case: the call is refused, with when to come again, and the client comes again by itself.
export const again = (call) => async () => {
  const began = performance.now();
  await call();
  return ["served", performance.now() - began >= 900];
};

export const all = async (stream) => {
  const out = [];
  for await (const event of stream) out.push(event);
  return out;
};

export const kindsOf = (events) => [...new Set(events.map((e) => e.type))];

const statusOf = (e) => e.status ?? e.statusCode ?? e.lastError?.statusCode;

export async function run(client, name, parts) {
  const { version } = createRequire(import.meta.url)(`./node_modules/${name}/package.json`);
  for (const [path, cases] of Object.entries(parts[part] ?? {})) {
    for (const [what, test] of Object.entries(cases)) {
      const line = { client, version, path, case: what };
      if (part === "again") readSync(0, Buffer.alloc(1)); // until the server has no worker
      try {
        line.saw = await test();
        if (line.saw instanceof Refused) Object.assign(line, { refused: true, status: line.saw[1] });
      } catch (e) {
        line.fails = `${e.constructor.name}: ${String(e.message).slice(0, 600)}`;
        line.status = statusOf(e);
      }
      console.log(JSON.stringify(line));
    }
  }
}
