// Package picker is the policy: given a request, the candidates with the
// numbers they are judged by, and the parameters, it says which candidate gets
// the request and what each of them would have cost.
//
// # Contract
//
// [Pick] is a function of its arguments. It reads no clock, takes no lock,
// sends nothing, logs nothing and allocates nothing. The caller
//
//  1. lays the candidates out as columns ([Candidates]) and marks in Out whoever
//     may not be picked (unhealthy, draining, not carrying a required taint):
//     nobody left is [ErrNoCandidate];
//  2. passes the round-robin cursor and, once the pick is committed, keeps the
//     cursor that the [Decision] returns. A pick that is not committed moves
//     nothing;
//  3. passes a source of randomness that nobody else uses at the same time;
//  4. books the load of a committed pick, so that the next one sees it. Pick
//     and booking must be one step (internal/load does that under one lock).
//
// [AppendTable] gives the terms behind the costs of the same arguments, and
// [AppendNear] only those of the picked candidate and the cheapest others, which
// a [Shortlist] keeps on the way. [CheckQueue] is the limit on queued prompt
// tokens (docs/behaviour.md#full-queue).
//
// # Cost
//
// In blocks of KV cache; lower wins. Of one candidate, with b the block size:
//
//	overlap       leading blocks of the prompt on the device, times the
//	              estimate weight where it is only an estimate, times the
//	              degraded weight where the rank has not told all; so for the
//	              blocks beyond on host and on disk
//	cached        round(b × (overlap + host weight × host + disk weight × disk))
//	uncached      max(0, ISL - cached)
//	decay         1 / (1 + D × ((active prefill - the least of all) / b) / max(1, request blocks))
//	credit        overlap score credit × decay
//	shared        leading blocks of the prompt in the cache that all workers share,
//	              less those that the candidate has on device, host and disk
//	credit blocks credit × overlap + host weight × host + disk weight × disk
//	              + shared cache multiplier × shared
//	prefill       scale × max(0, (active prefill + uncached + cached) / b - credit blocks)
//	              0 when prefill tokens are not tracked; of ISL alone when the
//	              load of the rank is not known
//	decode        active blocks + the blocks that the request adds
//	fetch         fetch cost × max(0, request blocks - overlap), of a decode pick whose
//	              prompt is prefilled elsewhere, where the engine fetches only what the
//	              rank lacks; of a starved candidate, with the greatest overlap of all
//	cost          (prefill + decode + request weight × active requests + fetch)
//	              × exp(-tanh(taint weight))
//
// A decode pick that does not track prefill tokens and gives credit takes the
// credit blocks off its decode term, not below zero. The formula is that of
// NVIDIA Dynamo's KV router, so that figures can be compared; so are the members
// of an [Override], by which one request weighs its own picks.
//
// It is written twice: in full, for one candidate (cost.go), and short, for 64
// that have nothing particular (fill.go). Both give the same bits, so that
// equal costs are ties whichever way they were worked out.
//
// What is to be fetched is a cost and never a credit: with a fetch cost of 1 it makes two
// ranks differ by the blocks of one prompt at most, so that a rank is preferred for what
// it holds until it runs about one answer more than another. Where no answers run, that would send
// everything to one rank: the caller marks who is starved (Candidates.Starved).
//
// # Overload
//
// A candidate with more prompt tokens or a greater share of its KV blocks booked
// than a threshold allows is not picked. When every one is over a threshold the
// pick fails with an [*OverloadedError] that has the numbers, or, if
// Params.ServeOverloaded says so, all of them are candidates again.
//
// # Choice
//
// Equal lowest costs are drawn from uniformly. A temperature above zero draws
// from all candidates by softmax over -cost / (max - min) / temperature.
// Least-loaded and power-of-two compare requests in flight, then booked tokens.
//
// # What it does not do
//
// It holds no state between calls, knows no health and no pool, and looks no
// taint up: [Constraints] say what a request asks for, its caller who has it. It
// does not decide whether there should be a prefill leg at all. What is fetched from
// the shared cache is not taken off the tokens that a booking adds: whether it was
// fetched, only the worker knows.
package picker
