// Package extproc serves Envoy's external-processing streams. What a stream's leg does,
// its machine says (internal/leg: phases, invariants); here are the runners, which feed the
// machines and perform their effects. What Envoy's messages look like is
// internal/extproc/wire's: here they are plain values. Who serves a request is
// internal/route's: the stream asks and is told (decide.go).
//
// Envoy opens one stream for each leg of a request. Which leg it is, the
// filter's own initial metadata says (x-baton-filter: main, prefill, sync or
// first_token), never a header: a client cannot choose it.
//
// testdata/matrix has what comes of a pick, case by case.
//
// # Requests that name their workers
//
// The main leg's filter says in its metadata whose word counts (filter):
//
//	x-baton-routing          absent: nobody's. Headers are overwritten or removed, members
//	                         of nvext refused
//	                         prerouted: what is named is taken, the rest is picked
//	                         direct: both legs are named by another picker, nothing is picked
//	x-baton-repick: true     that picker is asked again on each attempt: a fresh one makes
//	                         sense though its worker was named. Without it a failure of
//	                         a named worker is one typed error
//	x-baton-routing-fields   refuse: headers alone are believed, not nvext. For filters that
//	                         clients reach, whose headers the edge strips
//
// What becomes of a request that names its workers, or that asks who would serve it,
// internal/route says. No synchronous hand-off goes to another decode worker than the named
// one. Where one worker serves in place of a pair whose synchronous hand-off has failed in
// its last attempt, the request is still here then; at a rendezvous decode has it already,
// and its end is one error (docs/behaviour.md#first-prefill-fails, #fresh-attempt).
//
// # The way of a prefill leg
//
// A mirrored leg is a stream of its own (prefillStream), which reports to the attempt's
// owner, in this process or at another replica (peers.go). A leg that the plugin sends itself
// goes through a listener of its Envoy (legclient.go), as does a collecting one.
//
// How long a leg may take, limits.go says by internal/patience. judge.go tells
// internal/health what the machines charge workers with; what waits for a mate's word goes
// from one attempt of a request to the next in the avoidList.
//
// # The synchronous leg
//
// A stream of the filter sync admits a prefill or a collecting leg that some
// replica sent: it opens the seal, tells the owner that prefill has started, and
// sets the destination. It sees headers only.
//
// # The first events of a streamed answer
//
// Engines send the head of a streamed answer, and an event with nothing but a role,
// before they know whether they can serve. docs/decisions/0011-first-token.md says how
// the answer's beginning is had in each body mode. Where answers pass Envoy alone, the
// plugin asks for a stream of the filter first_token: with the header that names the
// route which has the filter, and with a sealed token as the metadata by which that
// stream finds its owner (firstStream). Envoy keeps what it has sent there until the
// plugin leaves the stream:
//
//	phase            on                       does                                        next
//	awaitHeaders     2xx, text/event-stream   ask for time                                reading
//	                 any other                leave: the main leg judges it               left
//	reading          a token, or what cannot
//	                 be read                  leave                                       left
//	                 an error, or the end     tell the owner                              told
//	                 neither yet              ask for time                                reading
//	told             the owner lets it go on  leave                                       left
//	any              the stream's end         the attempt is over                         left
//
// So the head comes to the main leg with the first token. Where answers pass through the
// main leg's own filter, its machine reads and keeps their pieces itself.
//
// # The endpoint picker protocol
//
// A filter may speak the protocol of the Gateway API inference extension (GAIE
// proposal 004). Two kinds of filters do, see filter:
//
//	plain    its metadata says nothing, and Gateway.Enabled is set: as a Gateway API
//	         implementation configures it. There is one leg, one attempt, no access
//	         log, and nobody strips what clients may not set: the machine distrusts
//	         it and removes it. One worker serves a request whose pair
//	         could only rendezvous; a synchronous hand-off works, since its prefill
//	         leg is our own
//	gateway  x-baton-protocol: gateway on a main filter: all that two legs need is
//	         beside it
//
// What the protocol adds to a decision: a subset of the endpoints, from metadata,
// that binds the picks of both legs; an ordered list of endpoints in place of one; a
// reason on refusals (internal/leg). What it
// adds to an answer: who has served it, when that is not who was picked (leg.Answerer),
// whereupon decode's booking moves there.
//
// It wants an endpoint for requests without a body, too: those go to one worker of any
// model, by load.
//
// # Concurrency
//
// Events of one stream (messages, the other leg's reports, timers) are queued
// and taken one at a time by whoever finds the stream idle; see stream. Sends
// happen there only, so they are never concurrent.
//
// What this package does not do: it does not choose (internal/route), keep load
// (internal/load) or watch workers (pkg/discovery); it sends requests to
// workers only to tokenise, and carries no bytes of any answer.
package extproc
