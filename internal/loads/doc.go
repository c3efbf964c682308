// Package loads asks engines what they run, so that what is booked on them can be put
// right.
//
// # Contract
//
// A [Poller] knows the decode and aggregated workers of the latest snapshot
// ([Poller.Update]), and vLLM's prefill workers, of which only [Config].Asleep hears: vLLM
// says there that it sleeps, which empties its KV cache. It asks each of them every [Config].Interval, give or take a tenth, over HTTP: SGLang
// its /v1/loads, vLLM its /metrics. What it hears goes to [Config].Heard, a rank at a time,
// with the time at which the answer had come. TensorRT-LLM has no such page and is not
// asked.
//
// A worker that does not answer, or whose page cannot be read, changes nothing: what is
// booked on it counts as it stands. It is asked less and less often, at last every
// [longestPause], and the log says so the second time in a row, once in [tellEvery] at
// most: engines are started and ended all the time.
//
// # Bounds
//
// At most [mostPerSecond] questions begin in a second and [mostAtOnce] are under way; a
// fleet that has more addresses than that allows is asked less often. A page is read up
// to [mostPage] bytes, a question takes [Config].Timeout at most.
//
// # What it does not do
//
// It books and weighs nothing (internal/load does), judges nobody's health by an answer
// that does not come (internal/health does), and knows of no request.
package loads
