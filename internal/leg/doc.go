// Package leg has the machines of a request's legs: [Main] for the leg that goes to decode,
// [Prefill] for a leg that Envoy mirrors to prefill. A machine takes one [Event] at a time,
// and returns the values of [Effect] that its runner is to perform, in order.
//
// # Contract
//
// Step does no I/O, reads no clock and takes no lock: what it returns follows from the
// machine and the arguments. A machine is not safe for concurrent use. Its runner keeps
// these rules:
//
//   - it sends each message of Envoy's, and EventClosed once; no message follows EventClosed;
//   - it answers each OpPick with EventPicked, EventRefused or EventAnswered, each OpPrefill
//     with EventPrefilled and each OpCollect with EventCollected, once;
//   - it sends EventTimer at the time that WakeAt returns, and calls WakeAt again after each
//     event;
//   - it performs effects in their order, and drops those for a stream that has ended.
//
// A body in an event belongs to the machine from then on, and a body in an effect to the
// runner. What else a runner has to know it asks the machine (questions.go, pairing.go). It
// does not know the machine's phase.
//
// # How a main leg is built
//
// What an attempt knows is in parts, each with methods of its own. A part reads what it is
// handed of another part, and does not write it:
//
//	Request    what has come of the request: headers, deadline, body, what was read of the body
//	Answer     what has come of decode's answer, how it comes, which pieces are held
//	handover   what prefill was asked for, and who is to take the KV that prefill holds
//	timers     the times at which the attempt acts without another event
//	charges    what the attempt says of its workers, and which ones a fresh attempt avoids
//	Plan       the decision that was booked
//
// On these parts stand three layers. Each layer knows only those below it:
//
//	attempt    how an attempt goes on and ends: route, relay, charge, retry, release
//	pairing    what an attempt does with its prefill leg
//	Main       which event becomes what, by the phase
//
// # The main leg
//
// A machine is for one attempt. If its answer carries x-baton-retry, Envoy makes a fresh
// attempt, as a new stream.
//
//	phase            on                       effects                                     next
//	awaitHeaders     request headers          continue (buffered) or nothing (streamed)   awaitBody
//	                 none but them (gateway)  pick                                        resolving
//	                 GET /v1/models[/ID]      answer from the view                        rejected
//	                 GET /health              answer whether the plugin is ready          rejected
//	                 unknown path, no body …  refuse                                      rejected
//	                 response headers         let the answer of a filter before ours pass rejected
//	awaitBody        body, not the end        keep it                                     awaitBody
//	                 the end                  scan, resolve tokens                        resolving
//	                 response headers         let Envoy's own refusal of the body pass    rejected
//	resolving        tokens are known         pick and reserve: prefill, then decode      routed, prefilling
//	                 nothing can be picked    refuse                                      rejected
//	                 … and a worker may return keep the request                           waiting
//	                 it was a question        name the workers that would serve it        rejected
//	waiting          a while has passed       pick                                        resolving
//	                 a drain                  retry, or refuse                            rejected
//	prefilling       prefill's answer         route, with the hand-off                    routed
//	                 it is the whole answer   answer with it                              rejected
//	                 it failed                retry, or refuse                            rejected
//	                 for good, with fallback  release both, pick one worker               resolving
//	routed           prefill leg well/ended   note it; decode's time limit begins         routed
//	                 prefill failed           end decode: retry, or refuse                rejected
//	                 response headers 2xx     relay, or hold for prefill or a first token streaming, holding
//	                 any other, or empty 2xx  retry, or relay                             rejected, streaming
//	                 decode's time is over    retry, or wait on                           rejected, routed
//	                 a worker is gone         retry, or refuse                            rejected
//	                 Envoy's own reply        retry, or refuse                            rejected
//	                 the stream's end         release decode                              ended
//	routed, holding  first events are an error,
//	                 or none has a token      retry, or let them pass                     rejected, streaming
//	holding          prefill well             relay the headers                           streaming
//	                 prefill failed           end decode: retry, or refuse                rejected
//	                 the first token came     relay the headers                           streaming
//	streaming        a piece of the answer    let it pass (holding: keep it)              streaming
//	                 prefill failed           cut the answer, with an error event if the  rejected
//	                                          answer comes through the plugin
//	                 prefill over, and the
//	                 filter would end the
//	                 answer with the plugin   leave the stream                            left
//	rejected         a piece of an answer of
//	                 Envoy's or a filter's    let it pass                                 rejected
//	                 anything else            ignored
//	                 the stream's end         release decode                              ended
//	ended            Envoy's access log       note how the answer ended, or that Envoy
//	                                          has refused the routed request              lingering, done
//	any other        the stream's end         release decode                              lingering, done
//	lingering        prefill's answer         collect the KV that prefill holds           lingering
//	                 collected                release decode                              done
//	                 prefill leg's end        release prefill                             done
//	                 orphan grace over        abort the prefill leg                       lingering
//	left             Envoy's access log breaks  wait a while for word that it runs         left
//	                 its entry, no such word, or the deadline: release decode             done
//
// After a failure of a worker that the request names, a fresh attempt is made only if
// Way.Repick says that whoever names workers is asked again on each attempt. Else that
// failure is one typed error.
//
// # Prefill first
//
// The phase prefilling is for engines whose decode needs prefill's answer
// (docs/behaviour.md#prefill-first). The plugin itself sends the prefill leg, through a
// listener of its Envoy, and reads the answer. With Way.Sends it sends the leg that runs beside
// decode in the same way. If prefill then holds KV, decode takes the
// KV. If no decode will come, a collecting leg takes it: a decode for one token whose answer
// is dropped. A collecting leg also takes the KV that a mirrored prefill holds for a decode
// that never got the request ([handoff.Kind.Holds]).
//
// # Decode's sidecar
//
// Of a pair whose prefill leg decode's sidecar sends (handoff.SidecarOf) the machine sees
// one leg. The request goes to decode with the prefill worker's address in a header, and no
// timer of a prefill leg runs. Prefill's booking is released with the head of decode's
// answer, since the sidecar asks decode when it has prefill's answer, and with decode's
// booking at the latest. An error or silence may be either worker's: both are probed, and
// neither is charged (docs/behaviour.md#sidecar).
//
// # Times
//
// A prefill leg has failed if it has not started within StartTimeout of the dispatch
// (longer for a large body, or with many attempts in flight); only the last attempt waits
// on. If another worker can be tried, a prefill leg has also failed if it takes longer than
// such a leg may (internal/patience). The worker that the request waits for is probed
// earlier. After the client has left, the prefill leg runs on; OrphanGrace later it is
// aborted.
//
// # Blame
//
// What was seen of a leg is a row of internal/blame. The row says which worker is charged,
// whether another attempt is made, which workers that attempt avoids, and how the request
// ends. A charge that only a mate's answer can prove waits in Plan.Suspects, which go from
// one attempt of a request to the next ([Lesson]).
//
// # The prefill leg
//
// The machine knows of its leg what the runner reads from the sealed token ([Ticket]).
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
//	any              the stream's end         report failed if only started; then ended
//
// # Answers that pass through the main leg
//
// An engine sends the head of a streamed answer, and an event with only a role, before it
// knows whether it can serve. The first token shows that it can. If answers pass through
// the main leg's own filter, its machine reads their pieces and holds them (answer.go). Else
// another stream does both, and EventFound tells what that stream has found.
//
// Each piece goes back as it came. While the head is held the pieces wait, up to
// maxHeldAnswer. The machine never leaves such a stream before its end: pieces on their way
// to the plugin would be lost (measured on Envoy 1.40: an answer that was there as a whole
// arrived empty).
//
// # Other paths
//
// A request on a path that is not read here passes: one worker of the model that the body
// names, picked by load, gets the request unchanged. Nothing of the answer is read. The
// body must be readable, since what only a router may set must not reach an engine. The
// path must not be one that controls an engine (openai.Control). A request without a body
// passes only for a gateway, which wants an endpoint for each request.
//
// # Invariants
//
//	X1 each reservation is released exactly once, however the attempt ends.
//	X2 a stream gets at most one ImmediateResponse, and nothing after it (the
//	   runner drops what a machine still emits).
//	X3 a request gets a destination only after all its legs are booked.
//	X4 no effect is sent to a stream that has ended.
//	X5 KV that prefill's answer says is held is taken by a decode that sees the
//	   hand-off, or is collected once. If the client leaves before decode's answer, or
//	   the deadline passes, Envoy's access log tells which; without the log the
//	   end of the engine's lease frees the KV.
//	X6 pieces of an answer go back once, in order, after its headers.
//	X7 a stream that has told, by EventFound, of first events that do not serve the
//	   request is answered: the events go on, or the attempt ends.
//	X8 each timer that is due goes off once, also if several are due together.
//
// This package does not pick (internal/route), book (internal/load) or send, and does not
// know who listens. What Envoy's messages look like is in internal/wire, what
// engines need in a body in internal/engine.
package leg
