// Package core is a simulated worker without what differs between engines. [New] is given
// a [Kind], which a package beside this one has for each engine: it sets defaults, checks
// settings, and makes an [Engine] for the worker, a table of facts and functions. The core
// has no condition on an engine's name.
//
// # Contract
//
// A request is read ([GenRequest]: members that only its engine reads are kept as raw JSON), and planned by the engine (Engine.Plan), which gives back an
// [Item] for each choice of each prompt, and a [Job]. The core then lets the request's
// fault strike, has the job prepare every item up to its first token, writes the answer in
// the engine's [Shape], and gives everything back before the last byte is sent.
//
// What an engine needs of a worker is exported: [Sim.Ranks], [Sim.Pages], [Call.Admit],
// [Call.ComputeNow], [Hold.Store] and so on. Users of simulators see only what
// test/enginesim names.
//
// # Invariants
//
//   - What a request holds is given back exactly once, however it ends (Call.release).
//   - All goroutines of a worker end before [Sim.Run] returns.
//   - Event batches of a rank leave in the order in which its cache changed.
//   - The invariants of the cache are in cache.go.
//
// # What is simulated
//
//   - A small tokenizer and chat template ([Tokenize], [ChatTokens]) make token ids of
//     prompts; ids in requests are used as they are. An answer has one word per token.
//     Its first word is "d" and the prompt's [Digest]. With Config.Published the ids of
//     prompts are those of a published tokenizer and template, from a table.
//   - Engines may serve /v1/responses and /v1/messages with texts and calls of tools in
//     the request, and texts in the answer. With ResponseStore responses are kept, which
//     later requests then continue.
//   - Each data-parallel rank has a prefix cache of pages with a capacity. The least
//     recently used leaves are evicted: one by one, or as nodes of a radix tree, in which
//     pages that were inserted together are one node. Changes are published under hashes
//     that are chained SHA-256. They are replayed in the framing of SGLang >= 0.5.22 and
//     vLLM >= 0.26.
//   - LoRA adapters and cache salts keep blocks apart, and so does an extra key, which is
//     not told in events ([Namespace]).
//   - The content of a picture is what its data: URL contains or what a server of this
//     machine answers; for any other address it is the address itself. In the prompt a
//     picture is a run of tokens whose length follows from the content's size. Its name
//     is the SHA-256 of the content and of what the request says about reading pictures,
//     or the uuid beside it.
//   - With PortPerRank each rank serves the API on a port of its own, as in
//     llm-d-inference-sim, and as vLLM does if others balance between its ranks. The port
//     determines the rank. X-Data-Parallel-Rank is refused there, as the [Violation]
//     rank_named: behind such a port an engine has no other rank. All other pages are the
//     same at every port.
//   - Time passes for each uncached prompt token and each output token. At most
//     MaxRunning requests run on a rank. Others wait, first in, first out, as does a
//     request for whose blocks there is no room.
//   - A request that names a model which the worker does not serve is the [Violation]
//     wrong_model, and is served as the engine serves it.
//
// The ZMTP server is our own (zmtp.go, publisher.go), for three faults of zmq4's PUB
// socket. It writes to its subscribers one after the other under one lock, so that one
// that stops reading stops all. It does the handshake in its accept loop, so that one
// that never finishes it shuts out the rest. And its writer goroutine outlives Close.
//
// The core does not know how halves of a request meet, which pages an engine has, and how
// events are encoded.
package core
