// Package enginesim simulates one serving engine process: a prefill, decode or
// aggregated worker with real HTTP, real KV events over ZMQ and the engine's
// own rules about who must meet whom. It is the yardstick of end-to-end tests:
// it enforces, so that a wrong request fails and is recorded.
//
// # Use
//
// [New] binds every address (port 0 picks one), [Sim.Run] serves until its
// context ends and returns when every goroutine has. cmd/enginesim runs one per
// process, so that it can be killed. Tests read [Sim.State] and [Sim.Requests]
// and break the worker with [Sim.SetFault]; [Client] does the same from another
// process over /sim/state, /sim/requests, /sim/fault, /sim/events (drops event
// batches) and /sim/reset.
//
// # What is simulated
//
//   - Prompts become token ids by a small tokenizer and chat template
//     ([Tokenize], [ChatTokens]); ids in requests are taken as they are. Answers
//     are one word a token, the first word being "d" and the prompt's [Digest].
//   - Each data-parallel rank has a prefix cache of pages with a capacity and
//     least-recently-used eviction of leaves. Its changes are published as
//     SGLang >= 0.5.20 encodes them, under signed 64-bit engine hashes that are
//     chained SHA-256, and replayed as SGLang >= 0.5.22 frames it.
//   - Time passes per uncached prompt token and per output token. At most
//     MaxRunning requests run per rank, the rest queues first in, first out;
//     so does a request for whose blocks there is no room.
//
// The ZMTP server is our own (zmtp.go, publisher.go): zmq4's PUB socket writes
// to its subscribers one after the other under one lock, so one that stops
// reading stops all; it does the handshake in its accept loop, so one that
// never finishes it shuts out the rest; and its writer goroutine outlives Close.
//
// # SGLang's rendezvous
//
// Sections are those of the design note on engines.
//
//   - A disaggregated worker answers 400 to a request without bootstrap_room
//     (§1.1); so it does to a room outside [0, 2^63-1] and to a bad port.
//   - Order of arrival does not matter: decode waits for prefill (§1.4). Decode
//     asks the very host:port that its request names, over GET /route first.
//   - Prefill answers one token, finish reason "length", and only after its KV
//     has been taken (§1.4).
//   - The prefill rank is room mod dp_size unless routed_dp_rank says otherwise,
//     which both halves must then know: else "follow_bootstrap_room conflict"
//     (§1.3). X-Data-Parallel-Rank beats the body (§1.2).
//   - n > 1 and prompt lists use room, room+1, …; a list of rooms is repeated
//     under n > 1, which makes duplicates and fails (§1.1).
//   - With HeaderOverrides, x-override-* beat the body on chat and generate, not
//     on completions (§1.2).
//
// Kinds of [Violation]: room_reused, prompt_mismatch (the halves have different
// prompts), rank_mismatch, rank_conflict, wrong_worker (prefill got a bootstrap
// address that is not its own), no_host, bad_host (IPv6 without brackets),
// refused_by_prefill (decode's side of one of these): all 500 to the client;
// repeated_field (a routing field twice in the body) and wrong_model are
// recorded, and served as the engine serves them.
//
// # What becomes of an orphaned half
//
//	what happens                        what the other half does                    source
//	prefill never comes                 decode: 500 after WaitingTimeout            §1.4
//	prefill fails or aborts on its own  decode waits on, then the same              §1.4
//	prefill's client closes             prefill aborts, its KV is freed;            §1.4; inferred (§9: not
//	                                    decode waits on, then the same              traced in the source)
//	prefill process dies or is stopped  decode: 500 after HeartbeatFailures beats   §1.4; ~10 s is inferred (§9)
//	prefill process is back before      decode waits for the room in the new one    inferred
//	decode never comes                  prefill: 500 after BootstrapTimeout         §1.4
//	decode's client closes              decode aborts, its KV is freed; prefill     §1.4 "that side only"; that KV
//	                                    computes, holds its KV until its client     is held until then is inferred
//	                                    closes or BootstrapTimeout
//	decode process dies                 as if its clients had closed                inferred
//	halves do not belong together       both: 500 at once                           ours: the engine would mix them
//	                                                                                up or wait
//
// Inferred as well: an address that nobody answers at counts as a dead prefill
// (as many beats); prefill computes at once and holds, where the engine lets
// the decode allocate first (HandshakeFirst does it that way; then an orphan
// holds nothing until its decode has come); decode reports the cached tokens
// of its prefill; decode's cache keeps received prompts.
//
// # Another engine
//
// sglang.go (plan), call.go (runPrefill, runDecode), rooms.go, bootstrap.go and
// link.go are the protocol; the rest knows no engine. vLLM and TensorRT-LLM are
// further values of Config.Engine with those functions.
//
// What this package does not do: it computes nothing and moves no KV; there is
// no sampling, no logprobs, no tools, no tensor parallelism; it is no model of
// any device's speed.
package enginesim
