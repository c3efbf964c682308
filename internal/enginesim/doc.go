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
//     least-recently-used eviction of leaves: of vLLM's one by one, of SGLang's
//     as the nodes of its radix tree, what was inserted at once together. Its
//     changes are published as SGLang 0.5.23 encodes them, under signed 64-bit
//     engine hashes that are chained SHA-256, or as vLLM 0.32 does, unsigned;
//     they are replayed as SGLang >= 0.5.22 and vLLM >= 0.26 frame it.
//     TensorRT-LLM publishes none.
//   - LoRA adapters and cache salts keep blocks apart, named as each engine has them named
//     and told as it tells them; so does SGLang's extra_key, which its events do not have:
//     those blocks are published under the hashes of the plain model's.
//   - Pictures in messages are what a data: URL has in it, what is at an address of this
//     machine, or any other address itself: a run of tokens as long as that makes it, whose
//     name is its SHA-256, with what the request says of reading it, or the uuid beside it.
//     vLLM tells them in its events and, with ScaleOut, at /v1/chat/completions/render;
//     SGLang pads them in its events and has a single mark for one at /tokenize.
//   - vLLM sleeps and wakes up (/sleep, /wake_up, as its documentation has them): its cache is
//     empty then, its /metrics says so, and its next events do.
//   - With PortPerRank each rank serves the API on a port of its own, as in
//     llm-d-inference-sim and where vLLM leaves the balancing between ranks to
//     others. The port says the rank; X-Data-Parallel-Rank is refused there, as
//     a [Violation] rank_named: behind such a port an engine has no other rank.
//     Everything else answers the same at all of them.
//   - Time passes per uncached prompt token and per output token. At most
//     MaxRunning requests run per rank, the rest queues first in, first out;
//     so does a request for whose blocks there is no room.
//
// Pages, answers, streams, errors and KV events of SGLang and vLLM are held to what real
// ones have said (package capture, testdata/captures). TensorRT-LLM is as its source reads.
//
// The ZMTP server is our own (zmtp.go, publisher.go): zmq4's PUB socket writes
// to its subscribers one after the other under one lock, so one that stops
// reading stops all; it does the handshake in its accept loop, so one that
// never finishes it shuts out the rest; and its writer goroutine outlives Close.
//
// # SGLang's rendezvous
//
// Names are those of docs/engines.md.
//
//   - A disaggregated worker answers 400 to a request without bootstrap_room
//     (sglang-triple); so it does to a room outside [0, 2^63-1] and to a bad port.
//   - Order of arrival does not matter: decode waits for prefill (sglang-order). Decode
//     asks the very host:port that its request names, over GET /route first.
//   - Prefill answers one token, finish reason "length", and only after its KV
//     has been taken (sglang-prefill-answer).
//   - The prefill rank is room mod dp_size unless routed_dp_rank says otherwise,
//     which both halves must then know: else "follow_bootstrap_room conflict"
//     (sglang-rank). X-Data-Parallel-Rank beats the body (sglang-rank-header).
//   - n > 1 and prompt lists use room, room+1, …; a list of rooms is repeated
//     under n > 1, which makes duplicates and fails (sglang-parallel). That n > 1 is served
//     apart is as the source reads: a real decode (0.5.23) never answers it.
//   - With HeaderOverrides, x-override-* beat the body on chat and generate, not
//     on completions (sglang-override).
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
//	prefill never comes                 decode: 500 after WaitingTimeout            sglang-alone
//	prefill fails or aborts on its own  decode waits on, then the same              sglang-alone
//	prefill's client closes             prefill aborts, its KV is freed;            sglang-prefill-stays; seen: nothing is left,
//	                                    decode waits on, then the same              decode waits 5 s and more
//	prefill process dies or is stopped  decode: 500 after HeartbeatFailures beats   sglang-dead-prefill; seen: killed, 5.5 s
//	prefill process is back before      decode waits for the room in the new one    inferred
//	decode never comes                  prefill: 500 after BootstrapTimeout         sglang-alone
//	decode's client closes              decode aborts, its KV is freed; prefill     source: an abort is of one side; that KV
//	                                    computes, holds its KV until its client     is held until then is inferred
//	                                    closes or BootstrapTimeout
//	decode process dies                 as if its clients had closed                inferred
//	halves do not belong together       both: 500 at once                           ours: the engine would mix them
//	                                                                                up or wait
//
// Seen as well: at an address that nobody answers at, decode says 500 after 14 s;
// here it counts as a dead prefill (as many beats). Inferred: prefill computes at
// once and holds, where the engine lets the decode allocate first (HandshakeFirst
// does it that way; then an orphan holds nothing until its decode has come);
// decode reports the cached tokens of its prefill; decode's cache keeps received
// prompts.
//
// # The hand-off of vLLM and TensorRT-LLM
//
// Their halves do not meet: prefill runs first and answers a hand-off, which
// the router puts into decode's body unread and unchanged (docs/behaviour.md#handoff-unread). From the
// prefill's answer on its KV is held under a lease, outside of any request,
// until the decode worker takes it over a side channel. The ledger of that is
// [HandoffState]; at the end of a test Held is zero on every worker.
//
//	                  vLLM, NixlConnector, pull            TensorRT-LLM, context first
//	prefill asked by  kv_transfer_params                   disaggregated_params context_only and a
//	                  do_remote_decode                     disagg_request_id in [2^42, 2^63), never
//	                                                       used before
//	its answer        kv_transfer_params at the top        choices[0].disaggregated_params, and
//	                                                       prompt_token_ids at the top
//	KV is held when   length or stop (NullOnStop: only     length or not_finished
//	prefill ended by  length)
//	else the answer   null                                 stop: the same fields, nothing held
//	has
//	decode asked by   the same, as it came                 the same, request_type generation_only;
//	                                                       prompt or prompt_token_ids as answered
//	lease             30 s                                 60 s
//	KV not to be had  500, or KVLoadFailure recompute      500
//	without them      decode computes the prompt itself: correct, slow, counted as Local
//
// vLLM's engine id is new with each process, its side channel has a port a
// rank. TensorRT-LLM's opaque state says the same in base64. X-Request-Id names
// vLLM's answer; X-Data-Parallel-Rank picks its rank and is ignored when it is
// no number. What the serving layer refuses with 400 after it has read the
// hand-off, and what is still queued when its client leaves, has its KV freed
// at the prefill worker (Released). Only /v1/chat/completions, /v1/completions,
// /health, /ready, /v1/models, /version, /metrics and, of vLLM, /tokenize and
// /load, of TensorRT-LLM /server_info are served.
//
// Violations, with what the client gets: bad_handoff (a wrong type or a field
// repeated in it: 400; a field missing: 500), handoff_changed, prompt_mismatch,
// taken_twice, released, unknown_handoff (500, at both workers: here
// refused_by_prefill), wrong_role (500), parallel_handoff (several prompts or
// choices on one hand-off: 500 at vLLM's decode, 400 at TensorRT-LLM; vLLM's
// prefill serves and leaks it), repeated_field. vLLM alone, and served:
// prefill_long (max_tokens is not 1), prefill_stream (a stream brings no
// hand-off). TensorRT-LLM alone: id_reused (500), foreign_field (400: it
// forbids fields it does not know; here those of the others' routing),
// no_prompt_ids (400), prefill_stream (400).
//
// vLLM's decode serves a hand-off that is used twice all the same, as the engine does: the
// violation tells.
//
// taken_twice and released are so strict because of what becomes of a second
// decode in vLLM: it reads blocks that have been given to others, and keeps
// them in its prefix cache under this prompt. Once a decode request has reached
// its worker, that worker frees the KV, whatever comes; only a hand-off that no
// decode worker has seen may be collected.
//
// No violation, since no router can know: the KV's lease has run out, the
// prefill process is another one, or cannot be reached within PullTimeout.
//
// Inferred or ours: what fails here at once, with 500, is in the engines a
// request that waits for KV for ever or an assertion that ends the process
// (fields missing), a garbled answer (another prompt), or a wait until a
// time-out (unknown ids); TensorRT-LLM would tokenise the prompt anew where it
// gets no ids; it has 60 s as kv_transfer_timeout_ms; a decode's usage says
// that all but the last token was cached (vLLM's counts its own cache alone,
// as captured); which worker may do which half is told by its role, where
// vLLM's may do both; one field of vLLM's hand-off, sim_later_field, stands
// for those of later versions. Heartbeats, by which a vLLM decode that queues
// extends the lease, are not simulated: who queues for longer than the lease
// loses its KV.
//
// # Another engine
//
// protocol.go says what an engine brings: sglang.go with rooms.go, bootstrap.go
// and link.go; vllm.go; trtllm.go; the last two share holds.go, handoff.go and
// sidechannel.go. The rest knows no engine.
//
// What this package does not do: it computes nothing and moves no KV; there is
// no sampling, no logprobs, no tools, no tensor parallelism; it is no model of
// any device's speed.
package enginesim
