// Package vllm is the simulated vLLM. [NIXL] and [Mooncake] are what the core is given: the
// engine with either connector. Hand-offs go over package sidechannel, whose doc.go has
// what both engines with a side channel have in common.
//
// # NixlConnector, pull
//
//	prefill asked by           kv_transfer_params do_remote_decode
//	its answer                 kv_transfer_params at the top
//	KV is held when            length or stop (NullOnStop: only length)
//	prefill ended by
//	else the answer has        null
//	decode asked by            the same, as it came
//	lease                      30 s
//	KV not to be had           500, or KVLoadFailure recompute or, of an old lease, unseen
//	without them               decode computes the prompt itself: correct, slow, counted as Local
//
// The engine id is new with each process, and the side channel has a port for each rank.
// X-Request-Id names the answer. X-Data-Parallel-Rank picks the rank, and is ignored if it
// is not a number. One field of the hand-off, sim_later_field, stands for fields of later
// versions. With MooncakeConnector both halves run at once; see mooncake.go.
//
// The kinds of [core.Violation], besides those of package sidechannel: wrong_role (500),
// parallel_handoff (several prompts or choices on one hand-off: 500 at decode; prefill
// serves and leaks it), repeated_field, and, served: prefill_long (max_tokens is not 1),
// prefill_stream (a stream brings no hand-off). If a hand-off is used twice, decode still
// serves the request, as the engine does; only the violation shows it.
//
// # Prompts, events and pages
//
//   - Prompts are cut, and lengths that do not fit are refused, as by 0.32
//     (docs/engines.md#truncation); with CutForAnswer as by older versions.
//   - Blocks are evicted one by one. Events are encoded as by 0.32, under unsigned hashes.
//     They tell adapters, salts and pictures.
//   - /inference/v1/generate has token ids in and out. With ScaleOut pictures are told at
//     /v1/chat/completions/render.
//   - The engine sleeps and wakes up (/sleep, /wake_up, as in its documentation). A
//     sleeping engine's cache is empty; its /metrics and its next events say so.
package vllm
