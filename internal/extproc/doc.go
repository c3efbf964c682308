// Package extproc serves Envoy's external-processing streams. Each stream has a runner
// here, which gives events to the machine of the stream's leg and performs the effects that
// the machine returns. The machines are in internal/leg (phases, invariants).
// internal/wire turns Envoy's messages into plain values and back. internal/route
// decides who serves a request; decide.go asks it.
//
// Envoy opens one stream for each leg of a request. The initial metadata of the ext_proc
// filter says which leg the stream is for (x-baton-filter: main, prefill, sync or
// first_token). No header says so: a client cannot choose the leg.
//
// testdata/matrix lists, for each state of prefill and each way to ask, who serves a
// request or how the request is refused.
//
// # Requests that name their workers
//
// The metadata of the main leg's filter says whether names of workers in a request are
// obeyed (filter):
//
//	x-baton-routing          absent: no. Headers that name workers are overwritten or
//	                         removed, members of nvext and questions are refused
//	                         prerouted: the named workers are taken, the others are picked
//	                         direct: another picker names both workers, none is picked
//	x-baton-repick: true     who names the workers is asked again on each attempt, so a fresh
//	                         attempt makes sense although workers are named. Without
//	                         this key a failure of a named worker is one typed error
//	x-baton-routing-fields   refuse: names in headers are obeyed, names in nvext and questions
//	                         refused. For filters that clients reach, whose headers the edge strips
//
// internal/route decides a request that names its workers, and answers one that asks who
// would serve it. A synchronous hand-off goes to no other decode worker than the named one.
// If a synchronous hand-off fails in the last attempt, one worker can still serve the
// request, because decode has not got the request yet. At a rendezvous decode has got the
// request, which therefore ends with one error (docs/behaviour.md#first-prefill-fails,
// #fresh-attempt).
//
// # The parts of a main leg
//
// The runner of a main leg (mainStream) holds four parts beside its machine. Only the methods of a
// part write its fields (test/archtest); the runner passes events to them, and reads them:
//
//	asked     the request: since when, the room of its body, its turn if it waits
//	decided   who serves it: bookings, the decision's record, the limits of its legs
//	far       its prefill leg: how to end it, and at which replica it runs
//	answered  its answer: the first events, the counts of its tokens, its end
//
// What an attempt came to is told at its end, out of all four (main_finish.go, measure.go).
//
// # The way of a prefill leg
//
// The legs that the plugin sends itself, prefill legs and collecting ones, go through a
// listener of its Envoy (sync_stream.go, legclient.go). If the main filter's metadata has
// x-baton-legs: sent, that is every leg. Else Envoy mirrors the legs that begin together with
// decode's: such a leg is a stream of its own (prefillStream), which reports to the attempt's
// owner, in this process or at another replica (peers.go).
//
// limits.go sets how long a leg may take, by internal/patience. judge.go reports to
// internal/health the charges against workers that the machines return. A charge that only
// the answer of a mate can prove goes in the avoidList from one attempt of a request to the
// next.
//
// # The synchronous leg
//
// A stream of the filter sync admits a prefill or a collecting leg that this replica or
// another has sent. The stream opens the seal and sets the destination. It sees only headers.
// A listener that the plugin alone reaches has no such filter, and takes the destination from
// the leg's header.
//
// # The first events of a streamed answer
//
// Engines send the head of a streamed answer, and an event that has only a role, before
// they know whether they can serve. docs/decisions/0011-first-token.md says how the plugin
// gets to read the beginning of an answer in each body mode. If Envoy alone carries the
// answers, the plugin makes Envoy open a stream of the filter first_token (firstStream): it
// sets the header x-baton-first-token, by which Envoy takes the route that has the filter,
// and gives Envoy a sealed token, by which that stream finds the attempt. Envoy keeps the
// pieces of the answer that it has shown there until the plugin leaves the stream:
//
//	phase            on                       does                                        next
//	awaitHeaders     2xx, text/event-stream   ask for time                                reading
//	                 a short error            ask for time                                failing
//	                 any other                leave: the main leg judges the answer       left
//	reading          a token, or an event
//	                 that cannot be read      leave                                       left
//	                 an error, or the end     tell the owner                              told
//	                 none of these yet        ask for time                                reading
//	failing          the error's body         add it to the head, leave                   left
//	told             the owner lets it go on  leave                                       left
//	any              the stream's end         the attempt is over                         left
//
// So the head comes to the main leg together with the first token. If answers pass through
// the main leg's own filter, the machine of the main leg reads and keeps their pieces.
//
// # The endpoint picker protocol
//
// A filter may speak the protocol of the Gateway API inference extension (GAIE
// proposal 004). There are two kinds of such filters (filter):
//
//	plain    has no metadata of Baton's, and Gateway.Enabled is set: a Gateway API
//	         implementation configures its filter so. There is one attempt and no access
//	         log, the data plane mirrors no prefill leg, and no edge strips the headers
//	         that clients may not set: the machine removes them. A pair that could only
//	         rendezvous is replaced by one worker. A synchronous hand-off works, since
//	         the plugin sends its prefill leg itself. x-baton-protocol: gateway-one-leg on
//	         a main filter is the same, for a filter behind another picker's, which has
//	         more metadata
//	gateway  x-baton-protocol: gateway, on a main filter whose Envoy has all that two
//	         legs need
//
// The protocol adds to a decision: a subset of the endpoints, from metadata, to which the
// picks of both legs are bound; an ordered list of endpoints in place of one; a reason on
// refusals (internal/leg). It adds to an answer which endpoint has served. If that is not
// the picked one (leg.Answerer), decode's booking moves to the worker of that endpoint.
//
// The protocol wants an endpoint for requests without a body, too: those go to one worker
// of any model, by load. With Gateway.PassUnknown so do bodies that name no model, and a
// model that nobody is known to serve goes to the workers whose models are not known.
//
// # Concurrency
//
// Events of one stream (messages, the other leg's reports, timers) are queued and handled
// one at a time, by the goroutine that finds the stream idle (actor). Only the handler
// sends, so sends are never concurrent.
//
// What this package does not do: it does not choose workers (internal/route), keep load
// (internal/load) or watch workers (pkg/discovery). It sends legs of its own through Envoy,
// and calls no worker itself; pkg/tokens does, to tokenise. It carries no bytes of answers
// to clients, except for a full-duplex filter and for an answer that prefill has completed.
package extproc
