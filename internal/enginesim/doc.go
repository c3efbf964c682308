// Package enginesim simulates the process of one serving engine: a prefill, decode or
// aggregated worker with real HTTP, real KV events over ZMQ, and the engine's own rules
// about which requests must meet. End-to-end tests are measured against it: it enforces
// the rules, so a wrong request fails and is recorded.
//
// # Use
//
// [New] binds every address (port 0 picks one). [Sim.Run] serves until its context ends,
// and returns when all its goroutines have ended. cmd/enginesim runs one worker per
// process, so that it can be killed. Tests read [Sim.State] and [Sim.Requests] and break
// the worker with [Sim.SetFault]. [Client] does the same from another process, with
// /sim/state, /sim/requests, /sim/fault, /sim/events (drops event batches), /sim/lie and
// /sim/reset.
//
// # What is simulated
//
//   - A small tokenizer and chat template ([Tokenize], [ChatTokens]) make token ids of
//     prompts; ids in requests are used as they are. An answer has one word per token.
//     Its first word is "d" and the prompt's [Digest]. With Config.Published the ids of
//     prompts are those of a published tokenizer and template, from a table.
//   - SGLang and vLLM serve /v1/responses and /v1/messages with texts and calls of tools
//     in the request, and texts in the answer; vLLM also /inference/v1/generate. SGLang's
//     messages lose the members of a hand-off, as in the engine. With ResponseStore vLLM
//     keeps responses, which later requests then continue.
//   - Each data-parallel rank has a prefix cache of pages with a capacity. The least
//     recently used leaves are evicted: at vLLM one by one, at SGLang as nodes of its
//     radix tree, in which pages that were inserted together are one node. Changes are
//     published as SGLang 0.5.23 encodes them, under signed 64-bit engine hashes (chained
//     SHA-256), or as vLLM 0.32 does, under unsigned ones. They are replayed in the
//     framing of SGLang >= 0.5.22 and vLLM >= 0.26. TensorRT-LLM publishes none.
//   - LoRA adapters and cache salts keep blocks apart. Requests name them, and events
//     tell them, as with each engine. SGLang's extra_key also keeps blocks apart, but its
//     events do not have it: those blocks are published under the hashes of the plain
//     model's blocks.
//   - The content of a picture is what its data: URL contains or what a server of this
//     machine answers; for any other address it is the address itself. In the prompt a
//     picture is a run of tokens whose length follows from the content's size. Its name
//     is the SHA-256 of the content and of what the request says about reading pictures,
//     or the uuid beside it. vLLM tells pictures in its events and, with ScaleOut, at
//     /v1/chat/completions/render. SGLang pads them in its events and has a single mark
//     for each at /tokenize.
//   - vLLM cuts prompts, and refuses lengths that do not fit, as 0.32 does
//     (docs/engines.md#truncation); with CutForAnswer as older versions.
//   - vLLM sleeps and wakes up (/sleep, /wake_up, as in its documentation). A sleeping
//     engine's cache is empty; its /metrics and its next events say so.
//   - With PortPerRank each rank serves the API on a port of its own, as in
//     llm-d-inference-sim, and as vLLM does if others balance between its ranks. The port
//     determines the rank. X-Data-Parallel-Rank is refused there, as the [Violation]
//     rank_named: behind such a port an engine has no other rank. All other pages are the
//     same at every port.
//   - Time passes for each uncached prompt token and each output token. At most
//     MaxRunning requests run on a rank. Others wait, first in, first out, as does a
//     request for whose blocks there is no room.
//
// Pages, answers, streams, errors and KV events of SGLang and vLLM are compared with
// those of real engines (package capture, testdata/captures). TensorRT-LLM is simulated
// as its source reads.
//
// The ZMTP server is our own (zmtp.go, publisher.go), for three faults of zmq4's PUB
// socket. It writes to its subscribers one after the other under one lock, so that one
// that stops reading stops all. It does the handshake in its accept loop, so that one
// that never finishes it shuts out the rest. And its writer goroutine outlives Close.
//
// # SGLang's rendezvous
//
// Names are those of docs/engines.md.
//
//   - A disaggregated worker answers 400 to a request without bootstrap_room
//     (sglang-triple), to a room outside [0, 2^63-1], and to a bad port.
//   - The order of arrival does not matter: decode waits for prefill (sglang-order).
//     Decode asks the very host:port that its request names, first with GET /route.
//   - Prefill answers one token, with the finish reason "length", and only after its KV
//     has been taken (sglang-prefill-answer).
//   - The prefill rank is room mod dp_size unless routed_dp_rank names another. Both
//     halves must then know it, or the request fails with "follow_bootstrap_room
//     conflict" (sglang-rank). X-Data-Parallel-Rank overrides the body
//     (sglang-rank-header).
//   - n > 1 and prompt lists use room, room+1, …. A list of rooms is repeated under n >
//     1, which makes duplicates and fails (sglang-parallel). The source serves n > 1 with
//     prefill and decode apart, and so does this package; a real decode (0.5.23) never
//     answers such a request.
//   - With HeaderOverrides, x-override-* override the body on chat and generate, not on
//     completions (sglang-override).
//
// The kinds of [Violation]. Answered with 500: room_reused, prompt_mismatch (the halves
// have different prompts), mixed_pair (of two groups), rank_mismatch, rank_conflict, wrong_worker (prefill got the
// bootstrap address of another worker), no_host, bad_host (IPv6 without brackets),
// refused_by_prefill (decode's side of one of these). Recorded, and served as the engine
// serves them: repeated_field (a routing field twice in the body) and wrong_model.
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
// Also seen: at an address where no server answers, decode says 500 after 14 s; here it
// counts as a dead prefill (as many beats). Inferred: prefill computes at once and holds
// its KV, whereas the engine lets decode allocate first (with HandshakeFirst it is so
// here, too; then an orphan holds nothing until its decode has come); decode reports the
// cached tokens of its prefill; decode's cache keeps the prompts that it received.
//
// # The hand-off of vLLM and TensorRT-LLM
//
// Their halves do not meet: prefill runs first and answers a hand-off, which the router
// puts into decode's body unread and unchanged (docs/behaviour.md#handoff-unread). From
// prefill's answer on, its KV is held under a lease, outside of any request, until the
// decode worker takes it over a side channel. [HandoffState] counts hand-offs; at the end
// of a test Held is zero on every worker.
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
//	                  or, of an old lease, unseen
//	without them      decode computes the prompt itself: correct, slow, counted as Local
//
// vLLM's engine id is new with each process, and its side channel has a port for each
// rank. TensorRT-LLM's opaque state has the same facts in base64. X-Request-Id names
// vLLM's answer. X-Data-Parallel-Rank picks its rank, and is ignored if it is not a
// number. If the serving layer has read a hand-off and then refuses the request with 400,
// or if its client leaves while it is queued, the KV at the prefill worker is freed
// (Released). Some pages are served at every port: /v1/chat/completions, /v1/completions,
// /health, /ready, /v1/models, /version, /metrics and /flush_cache. vllm_pages.go and
// trtllm.go add the pages of the engine itself.
//
// The kinds of [Violation], with what the client gets: bad_handoff (a wrong type or a
// field repeated in it: 400; a field missing: 500), handoff_changed, prompt_mismatch, mixed_pair,
// taken_twice, released, unknown_handoff (500, recorded at both workers, at decode as
// refused_by_prefill), wrong_role (500), parallel_handoff (several prompts or choices on
// one hand-off: 500 at vLLM's decode, 400 at TensorRT-LLM; vLLM's prefill serves and
// leaks it), repeated_field. At vLLM only, and served: prefill_long (max_tokens is not
// 1), prefill_stream (a stream brings no hand-off). At TensorRT-LLM only: id_reused
// (500), foreign_field (400: the engine forbids fields that it does not know; here those
// are the routing fields of other engines), no_prompt_ids (400), prefill_stream (400).
//
// If a hand-off is used twice, vLLM's decode still serves the request, as the engine
// does; only the violation shows it.
//
// taken_twice and released are strict because of what a second decode does in vLLM: it
// reads blocks that have been given to other requests, and keeps them in its prefix cache
// under this prompt. Once a decode request has reached its worker, that worker frees the
// KV in any case. So only a hand-off that no decode worker has seen may be collected.
//
// No violation, since a router cannot know: the KV's lease has run out, the prefill
// process is another one, or it cannot be reached within PullTimeout.
//
// Inferred or ours: some requests fail here at once, with 500, but not in the engines.
// With missing fields, an engine's request waits for KV for ever, or an assertion ends
// the process. With another prompt, its answer is garbled. With unknown ids, it waits
// until a time-out. TensorRT-LLM would tokenise the prompt anew if it gets no ids. It has
// 60 s as kv_transfer_timeout_ms. A decode's usage says that all but the last token was
// cached (vLLM's counts only its own cache, as captured). Here the role of a worker
// determines its half, while vLLM's may serve both. One field of vLLM's hand-off,
// sim_later_field, stands for fields of later versions. Heartbeats, with which a queueing
// vLLM decode extends the lease, are not simulated: a request that queues for longer than
// the lease loses its KV.
//
// # Another engine
//
// protocol.go says what an engine must implement. SGLang's files are sglang.go, rooms.go,
// bootstrap.go and link.go; the others are vllm.go and trtllm.go, which share holds.go,
// handoff.go and sidechannel.go. All other files are the same for every engine.
//
// This package computes nothing and moves no KV. It has no sampling, no logprobs, no
// tools and no tensor parallelism, and does not model the speed of any device.
package enginesim
