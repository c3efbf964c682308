// Package sidechannel is the hand-off of engines whose halves do not meet: prefill runs
// first and answers a hand-off, which the router puts into decode's body unread and
// unchanged (docs/behaviour.md#handoff-unread). From prefill's answer on, its KV is held
// under a lease, outside of any request, until the decode worker takes it over a side
// channel.
//
// # Contract
//
// A [Channel] is one worker's end. A prefill worker keeps KV ([Channel.Keep]); a decode
// worker takes it ([Channel.Receive]), or has it freed unread ([Channel.Drop]): if its
// serving layer has read a hand-off and then refuses the request with 400, or if its
// client leaves while it is queued. [Manner] is what differs between engines, and
// [HandoffFields] reads the object in a request.
//
// Invariant: KV that is kept is freed exactly once: taken, released or expired.
// core.HandoffState counts; at the end of a test Held is zero on every worker.
//
// The kinds of [core.Violation], with what the client gets: bad_handoff (a wrong type or a
// field repeated in it: 400; a field missing: 500), handoff_changed, prompt_mismatch, mixed_pair,
// taken_twice, released, unknown_handoff (500, recorded at both workers, at decode as
// refused_by_prefill), and those in the doc.go of the engines.
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
// until a time-out. A decode's usage says that all but the last token was cached (vLLM's
// counts only its own cache, as captured). Here the role of a worker determines its half,
// while vLLM's may serve both. Heartbeats, with which a queueing vLLM decode extends the
// lease, are not simulated: a request that queues for longer than the lease loses its KV.
//
// The package does not know what a hand-off looks like, and how a request asks for one.
package sidechannel
