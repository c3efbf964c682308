// Package clients has the clients that people use ask Baton: `make clients`. Its tests carry
// the tag clients.
//
// The clients are those of the package registries, pinned (pins, node), and installed into
// .tools/clients: OpenAI's and Anthropic's for Python and JavaScript, OpenAI's Agents SDK,
// LangChain, litellm as a library and as a proxy, Vercel's AI SDK, and the load tools guidellm,
// vllm bench serve and locust. Each has a small program here (python, node), which prints a line
// for each of its cases. Each case is one that a user of that client meets: an answer, a stream, a
// tool, an error as the client shows it, a stream that is left, a refusal that says when to ask again.
//
// # Contract
//
// A client reaches a real Envoy with Baton, and behind it simulated SGLang and vLLM, prefill and
// decode apart, or workers that each serve alone. What it sees apart has to be what it sees
// alone; where it is not, exceptions in clients_test.go has the reason. A refusal that no second try
// can change is asked once: the clients have their own retries. Requests have tools and tools' answers in them,
// but a simulated engine calls none: package real has real engines call them. docs/clients.md is what the last run saw.
//
// # Versions
//
// pins/*.txt are what `uv pip compile --generate-hashes` makes of pins/*.in, for the load tools with
// --override pins/load.override: they share vLLM's PyTorch. node has npm's own list.
//
// # What it does not do
//
// It judges no text and no speed, and does not simulate a client: whatever they send is theirs.
package clients
