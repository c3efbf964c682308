// Package handoff has what the rooms of the engines have in common: what the body and the headers
// of each leg must have so that prefill and decode of one request find each other. An engine's
// room fills in a [Protocol]. All functions are pure, safe for concurrent use, and keep or change
// nothing that is passed in.
//
// # Two ways
//
// With [Together] both legs begin at once, and meet where the members of decode's body say. If
// prefill then holds its KV ([Kind.Holds]) for a decode that may never come, Together.Collect
// makes a request that collects it (docs/behaviour.md#collected).
//
// With [First] prefill goes first (docs/behaviour.md#prefill-first), and decode's body carries
// what prefill answered.
//
// With a sidecar ([SidecarOf]) the caller injects nothing: a sidecar before decode's engine sends
// the prefill leg itself, and makes both bodies. Only [Hindrance] is asked then.
//
// A caller of a protocol in which prefill goes first does the following, in this order:
//
//  1. If [Alone] is true, the request asks for at most one token. Prefill's answer is
//     then the whole response, and nothing is handed over: the next steps are made
//     with alone set. Else, if [Hindrance] names an obstacle, the request cannot be
//     handed over, such as one for several generations; the caller decides what
//     becomes of it.
//  2. [AppendPrefill] makes prefill's body, with an id of [DrawRequestID]. Send it to prefill and read the whole answer.
//  3. If the answer is a whole 2xx, [ReadAnswer] reads it. An error means that the
//     answer must not be used for anything. The [Verdict] says how to go on:
//     HandOff: [AppendDecode] makes decode's body, and decode's answer is the response.
//     Finished: [AppendFinal] makes the response (docs/behaviour.md#prefill-answers).
//     Missing, Failed: try another prefill worker, or answer with an error. If nothing
//     is held, AppendDecode gives the client's own body: a vLLM decode worker that
//     may prefill serves it alone.
//  4. If [Result.Held] is true but no decode takes the KV, because the client has left,
//     or the answer was final or has failed, [AppendCollect] makes a request that
//     collects the KV. Its answer is dropped.
//
// # What holds
//
//   - The hand-off is copied byte for byte, in the engine's order and spelling,
//     including unknown fields: so numbers beyond 2^53 and later versions are safe.
//     Only what the protocol says must change is changed.
//   - A hand-off is malformed, and never copied, if it is not an object, if it
//     occurs twice, if it has a member twice, or if it exceeds [MaxHandOffBytes],
//     [MaxHandOffMembers] or [MaxHandOffDepth].
//   - Decode's body is the client's own apart from what is injected
//     (docs/behaviour.md#one-token). Prefill's body asks for one token and no stream. A
//     minimum of tokens becomes one as well: it forbids the engine to end the text with
//     prefill's token, which would otherwise be the client's whole answer.
//   - If [openai.Scan] has accepted the body and ReadAnswer the answer, the bodies are
//     valid JSON and have no key of ours twice.
//
// # What it does not do
//
// It sends nothing, picks no worker, and reads no clock: the caller must keep leases
// (vLLM frees held blocks 30 s after prefill's answer). It does not judge what is
// inside a hand-off: the engines do. The caller also sets the headers of the legs when
// prefill goes first: both legs carry the same x-request-id, and x-data-parallel-rank
// chooses a rank of vLLM.
package handoff
