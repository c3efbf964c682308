// Package route decides which workers serve a request: one worker or two, which ranks,
// why these, and why not others.
//
// # Contract
//
// A decision is made in two steps, since an engine may have to count the request's tokens
// in between. [Router.Ask] takes a [Request], whose values the caller has read, and finds
// the pool and the picks that are to be made: a [Question]. Its [Question.Query] says how
// the tokens are counted. [Router.Decide] takes the question and the prompt, and returns
// a [Decision] or a [Refusal].
//
//	q, refused := router.Ask(request)
//	sc := router.Borrow()
//	defer router.Return(sc)
//	prompt := …                                   // by q.Query(), or q.Prompt()
//	decision, refused := router.Decide(q, prompt, sc, now)
//
// The caller releases each booking of a Decision once; before the request is sent,
// [Decision.Cancel] takes both back. The Decision's Record, which a refused request has
// too, holds the reasons in words. The Record and the prompt lie in the memory of the
// [Scratch]. A Refusal is a [Reason] with its facts. The caller chooses the status and
// the text that a client gets.
//
// While prefill runs or after it has ended, [Router.DecodeAgain] picks another decode
// worker, and [Router.Collector] finds one that only fetches held KV.
//
// # The order of the checks
//
// The checks follow each other in this order: what the request says of workers
// (request.go); the model and its pool (adapter.go); whether the model can be served now
// (world.go); by one worker or two (question.go, apart.go); the workers that the request
// names (named.go); what it asks of its picks (constraints.go). If all workers of a leg
// are draining, the named workers are checked first: the client learns that its worker is
// one of them. Then come the picks: conditional disaggregation (conditional.go), prefill
// and decode (domain.go), and the ranks from which each is picked (pick.go, subset.go). A
// request on a path that Baton does not read has fewer checks (other.go).
//
// # Requests that name their workers
//
// A named worker is booked as a picked one is (narrow), and its load counts in later
// picks. It serves although it is set aside, overloaded, or over a queue's limit: the
// sender may have better knowledge, and must keep those limits itself. The request is
// refused with a [pin.Error] if the named worker cannot serve it: if it is unknown, gone,
// draining, or of another model, role or engine. No cursor moves. A request is also
// refused if it names a prefill worker and cannot be split by its engine (splittable). In
// a pool of several engines, that engine is the named worker's; if no worker is named,
// the pick is made from the engines that can split the request.
//
// A request that asks which workers would serve it ([Question.Asks]) is decided as any
// other, and nothing is booked or remembered. It gets an answer if the request itself
// would be served. While prefill is becoming ready it gets an answer with decode alone.
//
// # What binds a pick, and when one worker serves
//
// The taints that a request requires or prefers bind all of its picks. The transfer
// domain of its prefill worker binds the pick of decode, also a later one. Both bind
// named workers too. If no decode worker is left, the booking of prefill is cancelled,
// and its turn is given back.
//
// If the prefill workers of a model are ready, one worker serves a request in these cases
// only: conditional disaggregation says so, before prefill is picked; no pair could be
// picked in the newest world, and a fallback is configured; a pair has failed
// ([Request].InPlaceOf); no engine of the pool can split the request (splittable); its legs
// may keep different parts of its prompt (uncut); the gateway cannot carry its prefill leg,
// and decode has no sidecar that sends it (carried); the model is never split. The first
// two leave out requests that name a worker, and no fallback gets around back-pressure.
//
// # Invariants
//
//   - With a Refusal, after a panic and in a preview nothing is booked.
//   - Prefill is booked before decode is picked, so that the pick of decode counts it.
//   - All parts of a decision are made in one world: the last one that it was judged in.
//   - The caller gives the time: with the request, with the decision, with each newer
//     world.
//
// # What it does not do
//
// It has no part in streams, messages or phases, sends nothing, and waits only for a
// world that [Config].Newer has promised. It does not judge how long a leg may take, or
// what a failure means. pkg/picker weighs ranks, internal/load books them,
// internal/health sets them aside, and internal/activation says whether a model can be
// served.
package route
