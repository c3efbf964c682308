// Package loads asks engines what they run, so that their bookings can be corrected.
//
// # Contract
//
// A [Poller] asks the workers of the latest snapshot
// ([Poller.Update]), each every [Config].Interval, give or take a tenth, over HTTP:
// SGLang at /v1/loads, vLLM at /metrics. Their reports go to [Config].Heard, one for each
// rank, with the time at which the answer had come. TensorRT-LLM has no such page and is
// not asked. vLLM's page also says when vLLM sleeps, which empties its KV cache ([Config].Asleep).
//
// The same page may count hand-offs that went wrong: [Poller.Losses] lists those of the last
// [lossKept], and [Config].Lost gets them as they come.
//
// If a worker does not answer, or its page cannot be read, nothing changes: its bookings
// count as they are. It is asked less and less often, in the end every [longestPause].
// The log says so after the second failure in a row, at most once in [tellEvery], since
// engines are started and ended all the time.
//
// # Bounds
//
// At most [mostPerSecond] questions begin in a second, and at most [mostAtOnce] run at a
// time. A fleet with more addresses than that allows is asked less often. A page is read
// up to [mostPage] bytes, and a question takes at most [Config].Timeout.
//
// # What it does not do
//
// It books and weighs nothing (internal/load does). It judges no worker by a missing
// answer (internal/health does). It knows of no request.
package loads
