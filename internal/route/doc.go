// Package route decides who serves a request: one worker or two, which ranks, over whom,
// and why.
//
// # Contract
//
// A decision is made in two steps, since an engine may have to count the request's tokens
// in between. [Router.Ask] takes a [Request], values that the caller has read, and finds
// the pool and what is to be picked there: a [Question]. Its [Question.Query] says how the
// tokens are counted. [Router.Decide] takes the question and the prompt, and returns a
// [Decision] or a [Refusal].
//
//	q, refused := router.Ask(request)
//	sc := router.Borrow()
//	defer router.Return(sc)
//	prompt := …                                   // by q.Query(), or q.Prompt()
//	decision, refused := router.Decide(q, prompt, sc, now)
//
// What a Decision books is the caller's to release, each booking once; until it is sent on,
// [Decision.Cancel] takes both back. Its Record, which is there for a Refusal too, holds the
// reasons in words; it lies in the [Scratch], as the prompt does. A Refusal is a [Reason]
// with its facts. What a client is told, and with which status, is the caller's.
//
// While prefill runs, or after it, decode may be picked once more: [Router.DecodeAgain],
// and for KV that only has to be fetched [Router.Collector].
//
// # The order of the checks
//
// What the request says of workers (request.go), the model and its pool (adapter.go),
// whether it can be served now (world.go), by one worker or two (question.go, apart.go),
// the workers that it names (named.go), what it asks of its picks (constraints.go). Where
// all workers of a leg drain, those that are named come before that is said. Then the
// picks: conditional disaggregation (conditional.go), prefill and decode (domain.go), and
// what is picked from (pick.go, subset.go). A request on a path that is not read has
// a shorter way (other.go).
//
// # Requests that name their workers
//
// A named worker is booked as a picked one is (narrow), and its load counts for
// those who are picked. It is not refused for being set aside, overloaded, or
// over a queue's limit: who named it may know better, and keeping those limits
// is then their part. It is refused, typed, where it cannot serve: unknown, gone,
// draining, of another model, role or engine. No cursor moves. A request that its
// engine cannot split and that names a prefill worker is refused (splittable). Of a
// pool of several engines, the named worker's counts, and those are picked that can.
//
// A request that asks who would serve it ([Question.Asks]) is decided as any other, and
// nothing is booked or remembered. It has an answer where the request itself would be
// served, and while prefill is becoming ready, then with decode alone.
//
// # What binds a pick, and when one worker serves
//
// Taints that a request requires or prefers bind all of its picks, and the transfer
// domain of its prefill worker the pick of decode, a later one included. They bind named
// workers too. Where nobody is left, what prefill had booked is cancelled, its turn
// included.
//
// One worker serves a request whose prefill workers are known only by conditional
// disaggregation, decided before prefill is picked, or as a fallback where that is
// configured, after the pair could not be had in the newest world, or in place of a pair
// that has failed ([Request].InPlaceOf); never one that names a worker, and never to get
// around back-pressure.
//
// # Invariants
//
//   - With a Refusal, after a panic and for a preview nothing is booked.
//   - Prefill is booked before decode is picked, so that the pick sees it.
//   - All of a decision is of one world: the last that the request was judged in.
//   - Time is told: with the request, with the decision, and with each newer world.
//
// # What it does not do
//
// It knows no streams, messages or phases, sends nothing and waits for nothing but a world
// that [Config].Newer has promised. How long a leg may take and what a failure means is not
// its business. How ranks are weighed is pkg/picker's, what is booked on them internal/load's,
// who is set aside internal/health's, and whether a model can be served
// internal/activation's.
package route
