// Package picker is the policy. From a request, the candidates with the numbers by
// which they are judged, and the parameters, it says which candidate gets the request
// and what each candidate costs.
//
// # Contract
//
// [Pick] is a function of its arguments. It reads no clock, takes no lock, sends
// nothing, logs nothing and allocates nothing. The caller
//
//  1. lays the candidates out as columns ([Candidates]), and marks in Out those that may
//     not be picked (unhealthy, draining, without a required taint): if none is left
//     the error is [ErrNoCandidate];
//  2. passes the round-robin cursor and, once the pick is committed, keeps the cursor
//     that the [Decision] returns: a pick that is not committed does not move it;
//  3. passes a source of random numbers that nothing else uses at the same time;
//  4. books the load of a committed pick, so that the next pick counts it. Pick and
//     booking must be one step (internal/load does both under one lock).
//
// [AppendNear] gives the terms of the costs of the picked candidate and of the cheapest
// others, which a [Shortlist] keeps during the pick. [CheckQueue] enforces the limit on queued prompt tokens
// (docs/behaviour.md#full-queue).
//
// # Cost
//
// The lowest cost wins. By default it is in seconds (Params.InSeconds, seconds.go). For a rank that
// computes the prompt, with W the seconds until it is free, O the seconds of what it does not hold of this
// prompt, λ the arrivals a second and rank, and ρ the seconds of work booked a second and rank:
//
//	cost  W + O + O × 0.5 × λ / (1 - ρ) × (W + O)
//	      + 0.002 × blocks of running answers + 0.02 × O × requests
//
// For a rank that decodes what was prefilled elsewhere, with A the seconds that the answer takes there,
// F the seconds until the prompt is there, and p the seconds that a block adds to a token:
//
//	cost  0.1 × A + 0.01 × tokens × p × the prompt's blocks × requests + F
//	      + A × blocks too many now / blocks held + 0.0001 × tokens that will be computed again
//
// A rank of which nothing is known is taken for [Unlearned] and [UnlearnedWriting]. A candidate that is
// believed to miss Request.Target is picked only if all are.
//
// With InSeconds false a cost is in blocks of KV cache. For one candidate, with b the block
// size:
//
//	overlap       leading blocks of the prompt on the device, times the estimate
//	              weight if the overlap is an estimate, or else times the degraded
//	              weight if the rank is degraded; host and disk, the further blocks in
//	              host memory and on disk, have the same factor
//	cached        round(b × (overlap + host weight × host + disk weight × disk))
//	uncached      max(0, ISL - cached)
//	shared        leading blocks of the prompt in the cache that all workers share,
//	              less those that the candidate has on device, host and disk
//	credit blocks overlap score credit × overlap + host weight × host + disk weight × disk
//	              + shared cache multiplier × shared
//	prefill       scale × max(0, (active prefill + uncached + cached) / b - credit blocks);
//	              0 if prefill tokens are not tracked; with ISL alone in place of the
//	              three sums if the load of the rank is unknown
//	decode        active blocks + the blocks that the request adds
//	fetch         fetch cost × max(0, request blocks - overlap), for a decode pick whose
//	              prompt is prefilled elsewhere, if the engine fetches only what the rank
//	              lacks; for a starved candidate with the greatest overlap of all
//	cost          (prefill + decode + request weight × active requests + fetch)
//	              × exp(-tanh(taint weight))
//
// A decode pick that does not track prefill tokens and gives credit subtracts the
// credit blocks from its decode term, which stays at 0 or above. The formula is that of
// NVIDIA Dynamo's KV router, so that numbers can be compared. The fields of an
// [Override], with which one request changes the parameters of its own picks, are
// Dynamo's as well.
//
// The formula is written twice: in full, for one candidate (cost.go), and in short
// forms, for 64 ordinary candidates (fill.go). Both give the same bits, so that equal
// costs are ties whichever form computed them.
//
// Blocks that decode has to fetch add a cost; blocks that it holds give no credit. With
// a fetch cost of 1 two ranks differ by at most the blocks of one prompt. So a rank is
// preferred for what it holds until its running answers have about one answer more than
// those of another rank. If no answers run, every request would go to one rank. To
// prevent that, the caller marks the candidates that are seldom picked
// (Candidates.Starved).
//
// # Overload
//
// A candidate is not picked if more prompt tokens, or a greater share of its KV blocks,
// are booked than a threshold allows. If every candidate is over a threshold, the pick
// fails with an [*OverloadedError] that has the numbers. With Params.ServeOverloaded
// all of them can be picked then.
//
// # Choice
//
// Of several candidates with the lowest cost one is drawn uniformly. A temperature
// above zero draws from all candidates by softmax over -cost / (max - min) /
// temperature. Least-loaded and power-of-two compare requests in flight, then booked
// tokens.
//
// # What it does not do
//
// It holds no state between calls, knows no health and no pool, and looks up no taint:
// [Constraints] say what a request asks for; the caller knows which workers carry it.
// It does not decide whether there is a prefill leg at all. A booking adds also those
// tokens that may be fetched from the shared cache, since only the worker knows whether
// they were fetched.
package picker
