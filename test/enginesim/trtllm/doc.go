// Package trtllm is the simulated TensorRT-LLM, context first, as its source reads: no real
// one was run. [Kind] is what the core is given. Hand-offs go over package sidechannel,
// whose doc.go has what both engines with a side channel have in common.
//
//	prefill asked by           disaggregated_params context_only and a disagg_request_id in
//	                           [2^42, 2^63), never used before
//	its answer                 choices[0].disaggregated_params, and prompt_token_ids at the top
//	KV is held when            length or not_finished
//	prefill ended by
//	else the answer has        stop: the same fields, nothing held
//	decode asked by            the same, request_type generation_only; prompt or
//	                           prompt_token_ids as answered
//	lease                      60 s
//	KV not to be had           500
//	without them               decode computes the prompt itself: correct, slow, counted as Local
//
// The opaque state has the address and the engine's id in base64.
//
// The kinds of [core.Violation], besides those of package sidechannel: wrong_role (500),
// parallel_handoff (several prompts or choices on one hand-off: 400), repeated_field,
// id_reused (500), foreign_field (400: the engine forbids fields that it does not know;
// here those are the routing fields of other engines), no_prompt_ids (400), prefill_stream
// (400).
//
// Inferred or ours: the engine would tokenise the prompt anew if it gets no ids. It has
// 60 s as kv_transfer_timeout_ms. It publishes no KV events here, and knows no adapters,
// no key and none of the APIs besides chats and completions.
package trtllm
