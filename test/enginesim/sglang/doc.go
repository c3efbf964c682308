// Package sglang is the simulated SGLang: its rendezvous, its pages and its KV events.
// [Kind] is what the core is given. Names are those of docs/engines.md.
//
// # The rendezvous
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
//   - Messages lose the members of a hand-off, as in the engine.
//
// Invariant: a room has at most one prefill half and one decode half.
//
// The kinds of [core.Violation]. Answered with 500: room_reused, prompt_mismatch (the halves
// have different prompts), mixed_pair (of two groups), rank_mismatch, rank_conflict, wrong_worker (prefill got the
// bootstrap address of another worker), no_host, bad_host (IPv6 without brackets),
// refused_by_prefill (decode's side of one of these). Recorded, and served as the engine
// serves it: repeated_field (a routing field twice in the body).
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
// # Events and pages
//
// The cache evicts nodes of its radix tree. Changes are published as SGLang 0.5.23 encodes
// them, under signed 64-bit engine hashes. Events tell adapters and salts, not the
// extra_key: its blocks are published under the hashes of the plain model's blocks.
// Pictures are padded in events, and are a single mark each at /tokenize.
package sglang
