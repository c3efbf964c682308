// Package extproc serves Envoy's external-processing streams, with one small state machine
// for each. What Envoy's messages look like is internal/extproc/wire's: here they are plain
// values. Who serves a request is internal/route's: the stream asks and is told (decide.go).
//
// Envoy opens one stream for each leg of a request. Which leg it is, the
// filter's own initial metadata says (x-baton-filter: main, prefill, sync or
// first_token), never a header: a client cannot choose it.
//
// # The main leg
//
// One stream is one attempt. Envoy repeats a failed attempt as a new stream,
// when our answer carries x-baton-retry. The machine is mainLeg; step switches
// on the phase, then on the event, and returns effects. It does no I/O, reads
// no clock and takes no lock.
//
//	phase            on                       effects                                     next
//	awaitHeaders     request headers          continue (buffered) or nothing (streamed)   awaitBody
//	                 none but them (gateway)  pick                                        resolving
//	                 GET /v1/models[/ID]      answer from the view                        rejected
//	                 unknown path, no body …  refuse                                      rejected
//	                 response headers         a filter before ours answers: let it        rejected
//	awaitBody        body, not the end        keep it                                     awaitBody
//	                 the end                  scan, resolve tokens                        resolving
//	                 response headers         Envoy refuses the body itself: let it       rejected
//	resolving        tokens are known         pick and reserve: prefill, then decode      routed, prefilling
//	                 nothing can be picked    refuse                                      rejected
//	                 it was a question        answer with who would serve it              rejected
//	prefilling       prefill's answer         hand it over: route                         routed
//	                 it is the last word      answer with it                              rejected
//	                 it failed                retry, or refuse                            rejected
//	                 for good, with fallback  release both, pick one worker               resolving
//	routed           prefill leg well/ended   note it; decode's time begins               routed
//	                 prefill failed           end decode: retry, or refuse                rejected
//	                 response headers 2xx     relay, or hold while prefill is not well    streaming, holding
//	                 any other, or empty 2xx  retry, or relay                             rejected, streaming
//	                 decode's time is over    retry, or wait on                           rejected, routed
//	                 a worker is gone         retry, or refuse                            rejected
//	                 Envoy's own reply        retry, or refuse                            rejected
//	routed, holding  first events are an error,
//	                 or none has a token      retry, or let them pass                     rejected, streaming
//	holding          prefill well             relay the headers                           streaming
//	                 prefill failed           end decode: retry, or refuse                rejected
//	                 the first token came     relay the headers                           streaming
//	streaming        a piece of the answer    let it pass (holding: keep it)              streaming
//	                 prefill failed           cut the answer, with an error event where   rejected
//	                                          answers come through us
//	                 prefill over, full duplex leave the stream                           left
//	rejected         a piece of an answer of
//	                 Envoy's or a filter's    let it pass                                 rejected
//	                 anything else            ignored
//	                 the stream's end         release decode                              ended
//	ended            Envoy's access log       note how the answer ended                   lingering, done
//	any other        the stream's end         release decode                              lingering, done
//	lingering        prefill's answer         collect what it holds                       lingering
//	                 collected                release decode                              done
//	                 prefill leg's end        release prefill                             done
//	                 orphan grace over        abort the prefill leg                       lingering
//	left             Envoy's access log, or the deadline: release decode                  done
//
// testdata/matrix has what comes of a pick, case by case.
//
// # Requests that name their workers
//
// The main leg's filter says in its metadata whose word counts (way):
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
// # The synchronous way
//
// Prefilling is the way of engines whose decode needs prefill's answer
// (docs/behaviour.md#prefill-first): the plugin sends that leg itself, through a listener
// of its Envoy, and reads the answer. KV that prefill then holds is taken by decode, or,
// when no decode will come, by a collecting one: a decode for one token whose answer is
// dropped. So is what a mirrored prefill holds for a decode that never had the request
// ([handoff.Kind.Holds]).
//
// Times: a leg that has not started within StartTimeout of the dispatch, and more for a
// large body or many attempts in flight, has failed; so has one that takes longer than
// such a leg may (limits.go, internal/patience), where somebody else can be tried. Whom
// the request waits for is probed sooner. After the client has gone the prefill leg runs
// on; OrphanGrace later it is aborted.
//
// # Blame
//
// What was seen of a leg is a row of internal/blame: who is charged, whether another
// attempt is made, whom it avoids, how the request ends. What only a mate's answer can
// prove waits in the plan's suspects, which go from one attempt of a request to the next
// (avoidList); judge.go tells internal/health.
//
// # The prefill leg
//
// The machine is prefillLeg. It needs nothing but the sealed token.
//
//	phase            on                       effects                                     next
//	awaitHeaders     a sealed token           report started, continue                    awaitBody
//	                 none, wrong, late        403 or 410, nothing reaches a worker        refused
//	awaitBody        the end                  one token, no stream; set the destination   routed
//	routed           response headers 2xx     read on                                     answering
//	                 429, 5xx, Envoy's own    report failed                               answering
//	                 other 4xx                read on, report failed with the answer      answering
//	answering        the answer's end         report well, or failed by finish reason     over
//	any              abort                    end the leg                                 over
//	any              the stream's end         report failed if it was not over; ended
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
// main leg's own filter, its machine reads and keeps their pieces itself (main_answer.go).
//
// # The endpoint picker protocol
//
// A filter may speak the protocol of the Gateway API inference extension (GAIE
// proposal 004). Two kinds of filters do, see way:
//
//	plain    its metadata says nothing, and Gateway.Enabled is set: as a Gateway API
//	         implementation configures it. There is one leg, one attempt, no access
//	         log, and nobody strips what clients may not set: the machine distrusts
//	         it (distrust) and removes it. One worker serves a request whose pair
//	         could only rendezvous; a synchronous hand-off works, since its prefill
//	         leg is our own
//	gateway  x-baton-protocol: gateway on a main filter: all that two legs need is
//	         beside it
//
// What the protocol adds to a decision: a subset of the endpoints, from metadata,
// that binds the picks of both legs; an ordered list of endpoints in place of one; a
// reason on refusals (dropReason). What it
// adds to an answer: who has served it, when that is not who was picked (answerer),
// whereupon decode's booking moves there.
//
// It wants an endpoint for requests without a body, too: those go to one worker of any
// model, by load.
//
// # Other paths
//
// A request on another path than those we read (passing) goes to one worker of the model
// that its body names, by load, as it came; of its answer nothing is read. Its body must
// be readable, since what only a router may set must reach no engine, and its path must
// be none that an engine is controlled by (openai.Control), whoever asks.
//
// Where the filter sends us answers' bodies, each piece goes back as it came. They
// wait while the headers are held, up to maxHeldAnswer. Such a stream is never left
// before its end: pieces on their way to us would be lost (measured on 1.40: an
// answer that was there as a whole arrived empty).
//
// # Invariants
//
//	X1 each reservation is released exactly once, whatever ends the attempt.
//	X2 at most one ImmediateResponse a stream; nothing is sent after it (the
//	   stream drops what a machine still emits).
//	X3 a request leaves with a destination only if both legs are booked.
//	X4 no effect is sent to a stream that has ended.
//	X5 what prefill's answer says is held goes to a decode that sees it, or is
//	   collected once. Where a client leaves between, or its deadline passes,
//	   Envoy's access log decides; without it the engine's lease does.
//	X6 pieces of an answer go back once, in order, after its headers.
//	X7 who has told that first events are an error is answered: they go on, or the
//	   attempt ends.
//	X8 each clock that is due goes off once, also where several are due together.
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
