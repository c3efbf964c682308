// Package hour keeps what happened in the last hour, in steps of ten seconds, for people:
// how requests ended, how long tokens took, how much of the prompts was cached, and how much
// work was queued.
//
// # Contract
//
// An [Hour] is told of each request by [Hour.Ended], [Hour.Took] and [Hour.Prompt], and of
// the queues by [Hour.Sample], once a step. [Hour.Spans] returns the hour, in spans of as
// many steps as the caller wants. All may be called at the same time. A nil Hour keeps
// nothing.
//
// Callers give the time. Times with a monotonic reading, as time.Now returns them, are safe
// from changes of the clock. Without one, time never goes back here: if the clock is set back,
// what follows is counted from the newest step on, and if it is set far forward, what is older
// than an hour is forgotten, as always.
//
// # Invariants
//
//   - The memory is that of one Hour, about 560 KiB, whatever is told to it.
//   - A quantile is off by at most 5 % of itself, since times are counted in buckets of which
//     each is 10 % wider than the one before, from 0.1 ms to 18 min. What lies outside counts
//     in the first or the last one.
//   - A span has only steps that are over.
//
// # What it does not do
//
// It reads no clock, starts no goroutine, and knows no model, worker or client: whoever needs
// more than an hour, or by model, has the metrics.
package hour
