// Package leg has the machines of a request's legs: Main for the leg that goes to decode,
// Prefill for one that Envoy mirrors to prefill. Each takes one Event at a time and returns
// the Effects that its runner is to perform, in order.
//
// # Contract
//
// Step does no I/O, reads no clock and takes no lock: what it returns follows from the
// machine and its arguments. It is not safe for concurrent use. A runner keeps this:
//
//   - it sends each message of Envoy's, and EventClosed once, after which no message comes;
//   - it answers each OpPick with EventPicked, EventRefused or EventAnswered, each OpPrefill
//     with EventPrefilled, each OpCollect with EventCollected, once;
//   - it sends EventTimer when WakeAt has come, and asks WakeAt anew after each event;
//   - it performs effects in their order. One that is for a stream which has ended it drops.
//
// A body in an event is the machine's, one in an effect is the runner's. What else a runner
// has to know it asks (questions.go, pairing.go); it is told of no phase.
//
// # How a main leg is built
//
// What an attempt knows is in parts with methods of their own. Of another part one knows
// what it is handed, to read:
//
//	Request    what has come of the request: headers, deadline, body, what was read of it
//	Answer     what has come of decode's answer, how it is carried, what is held of it
//	handover   what prefill was asked for, and whose the KV is that it holds
//	timers     the times at which the attempt goes on by itself
//	charges    what is said of its workers, and whom a fresh attempt avoids
//	Plan       the decision that was booked
//
// On them stand three layers; each knows only those below it:
//
//	attempt    how an attempt goes on and ends: route, relay, charge, retry, release
//	pairing    what it does with its prefill leg
//	Main       which event becomes what, by the phase
//
// # The main leg
//
// One machine is one attempt. Envoy repeats a failed attempt as a new stream, when the
// answer carries x-baton-retry.
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
// Requests that name their workers are retried only where Way.Repick says that whoever
// names them is asked again on each attempt; without it a failure of a named worker is one
// typed error.
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
// such a leg may (internal/patience), where somebody else can be tried. Whom
// the request waits for is probed sooner. After the client has gone the prefill leg runs
// on; OrphanGrace later it is aborted.
//
// # Blame
//
// What was seen of a leg is a row of internal/blame: who is charged, whether another
// attempt is made, whom it avoids, how the request ends. What only a mate's answer can
// prove waits in the plan's suspects, which go from one attempt of a request to the next
// (Lesson).
//
// # The prefill leg
//
// It needs nothing but what the sealed token says (Ticket).
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
// # Answers that pass through the main leg
//
// Engines send the head of a streamed answer, and an event with nothing but a role, before
// they know whether they can serve: what counts is the first token. Where answers pass
// through the main leg's own filter, its machine reads and keeps their pieces (answer.go);
// else a stream of its own does, and EventFound tells.
//
// Each piece goes back as it came. They wait while the head is held, up to maxHeldAnswer.
// Such a stream is never left before its end: pieces on their way to us would be lost
// (measured on 1.40: an answer that was there as a whole arrived empty).
//
// # Other paths
//
// A request on another path than those we read passes: one worker of the model that its
// body names gets it, by load, as it came; of its answer nothing is read. Its body must
// be readable, since what only a router may set must reach no engine, and its path must
// be none that an engine is controlled by (openai.Control), whoever asks. A gateway wants an
// endpoint for requests without a body, too.
//
// # Invariants
//
//	X1 each reservation is released exactly once, whatever ends the attempt.
//	X2 at most one ImmediateResponse a stream; nothing is sent after it (the
//	   runner drops what a machine still emits).
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
// What this package does not do: it does not choose (internal/route), book (internal/load),
// send, or know who listens; what Envoy's messages look like is internal/extproc/wire's,
// and what engines need in a body pkg/prefill/handoff's.
package leg
