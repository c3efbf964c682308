// Package handoff says, engine by engine, what the body and the headers of each
// leg must carry so that prefill and decode of one request find each other.
// One file an engine. Everything here is pure: values in, bytes out; safe for
// concurrent use; nothing that is passed in is kept or written to.
//
// # Two ways
//
// Two engines get both legs at once. SGLang's halves meet at a bootstrap server:
// [AppendSGLang] gives the members that both bodies carry. vLLM with
// MooncakeConnector finds prefill's engine at one: [AppendMooncake] gives decode's
// member, and [MooncakePrefill] makes prefill's body of decode's. Its prefill keeps what it
// has computed ([Kind.Holds]) for a decode that may never come: [AppendMooncakeCollect]
// makes a request that fetches it (docs/behaviour.md#collected).
//
// The others prefill first (docs/behaviour.md#prefill-first), and decode's body carries what prefill
// answered. [Kind] says which protocol it is:
//
//	NIXLPull      vLLM, NixlConnector in pull mode     kv_transfer_params
//	ContextFirst  TensorRT-LLM, context first          disaggregated_params
//
// The caller of those does, in this order:
//
//  1. [Alone]: one token at most is asked for: prefill's answer is the whole
//     response, and nothing is handed over. It is asked with alone set.
//     Else [Obstacle]: requests that have no hand-off, such as several
//     generations at once; the caller decides what becomes of them.
//  2. [AppendPrefill], for ContextFirst with an id of [DrawRequestID]; send it to
//     prefill, read the whole answer.
//  3. For a whole 2xx, [ReadAnswer]. An error means that the answer is not
//     to be used for anything. Its [Verdict] says how to go on:
//     HandOff: [AppendDecode], send it to decode, whose answer is the response.
//     Finished: [AppendFinal] makes the response (docs/behaviour.md#prefill-answers).
//     Missing, Failed: another prefill worker, or an error. Where nothing is
//     held, decode's body is the client's own: a vLLM decode worker that may
//     prefill serves it alone.
//  4. Whenever [Result.Held] is true and no decode takes the KV, because the
//     client has left, or the answer was final or has failed, [AppendCollect] makes a request
//     that takes it and whose answer is dropped.
//
// # What holds
//
//   - The hand-off is copied byte for byte, in the order and the spelling of the
//     engine, fields that nobody here knows included: numbers beyond 2^53 and
//     versions to come are safe. What the protocol says must change is changed
//     alone (see trtllm.go).
//   - A hand-off that is no object, is there twice, names a member twice, or is
//     beyond [MaxHandOffBytes] or [MaxHandOffDepth] is malformed, and never
//     spliced.
//   - Decode's body is the client's own outside what is injected (docs/behaviour.md#one-token); prefill's
//     asks for one token and no stream. A floor of tokens becomes one, too: it
//     forbids the engine to end the text with prefill's token, which would then
//     be the client's whole answer.
//   - Given a body that [openai.Scan] let pass and an answer that ReadAnswer let
//     pass, the bodies are valid JSON and no key of ours stands in them twice.
//
// # What it does not do
//
// It sends nothing, picks nobody, and keeps no time: leases are the caller's
// (vLLM frees held blocks 30 s after prefill's answer). It does not judge what
// is inside a hand-off; the engines do. Headers of the synchronous legs are the
// caller's, too: both carry the same x-request-id, and x-data-parallel-rank
// pins a rank of vLLM.
package handoff
