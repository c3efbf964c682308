// Package health sets failing workers aside and brings them back step by step. It judges
// by what requests have met at a worker, and by small probes.
//
// # States of a worker
//
//	doubted ◄── probe unanswered ── healthy ◄── heard from ── doubted
//
//	healthy ───── failure ─────► aside ◄──── due / probe failed ────► probing
//	   ▲                          ▲  │                                  │
//	   │                          │  └── a stalled one serves ───┐      │
//	   │                       failure                           ▼      │
//	   └── serves a request ──────┴────────────────────────── recovering ◄── probe succeeded
//
// What each state is for:
//
//   - healthy: in service.
//   - doubted: in service, and picked only if its pools have no healthy worker. A worker
//     that is silent may be stopped, or only busy: requests lose nothing at its mates, and
//     without mates they wait, as they would have waited anyway. It is probed on.
//   - aside, probing: not picked. Probing is aside while a probe is under way.
//   - recovering: one request at a time may try the worker, as long as its pool has a
//     healthy one; if it has none, all may. A probe alone does not make a worker healthy,
//     since engines answer /health while their scheduler is stuck. The next request that
//     is served to its end does.
//
// # Evidence
//
// A failure at a worker may be caused by the worker, by the request, or by another
// worker. Each kind counts only as far as it is evidence against the worker:
//
//   - A refused connection: sets aside at once where this process met it. The worker could
//     serve no request. Where a data plane says it, which whoever reaches the plugin's port
//     can do, the worker is doubted and probed at once, and only the probe sets it aside. What
//     is said until the answer counts as one failed request: a worker that the plugin reaches,
//     and the data plane does not, is set aside as one that fails.
//   - A probe that is refused: sets aside at once, since no client can cause it. Suspects
//     are probed while they are in service ([Suspect] and most failures ask for that). Any
//     answer clears them, also a 404, since not every engine has /health.
//   - An answer of a Baton, by its header, to a probe or to the question at a worker's
//     arrival: sets aside at once. The worker's endpoint, or the bootstrap address of
//     prefill, leads back to a router, and each request sent there would come as a new
//     one. That is asked, and not found by comparing addresses: the answer is first-hand,
//     holds for each spelling of an address, and nobody but who answers there can give it.
//   - An answer of an engine of other models, where it is known which ones the worker had:
//     sets aside at once.
//   - A probe that gets no connection, and is not refused: sets aside, unless the worker has
//     served a request since it was asked.
//   - A probe that gets a connection, while nothing of the worker answers: makes a healthy
//     suspect doubted. Once the whole time of the probe has passed so, it sets aside, unless
//     the worker has served a request meanwhile, or has no healthy mate.
//   - A probe whose page is late, while another page of the worker comes: makes a healthy
//     suspect doubted.
//   - Server errors, answers that break off, lost connections: a run of them counts if
//     the rate of the others in its pools does not explain it (rates.go), since failures
//     that all workers have alike are caused by the requests. While the worker recovers,
//     one is enough if the worker fails more than the others do. If another worker has
//     served the same request ([Report].Proven), the fault is this worker's: then a few
//     in a row are enough, and refusals count as well. One lost connection is never
//     enough: the engine may close one that is idle while a request is sent on it.
//   - Requests that are too slow: two different ones, with no served request between, and
//     both asked after the latest that was served. One request alone is never enough,
//     however many attempts it has.
//   - Hand-offs between two workers: a worker that has failed with two different partners
//     within a minute, with no success between (pairs.go).
//
// If each rank of a worker has a port of its own, all of this holds for each rank: one
// may be dead while the others serve. If the port of one rank refuses a connection, the
// other ranks are probed at once, since they may be dead too. Ranks that share a port are
// judged together.
//
// A leg that was never started is evidence against no worker. Each relapse while
// recovering makes the time before the next probe four times as long, up to a limit.
//
// A request that is served to its end shows that a stall (overdue, time-out) is over:
// such a worker comes back without a probe. After errors and broken connections it shows
// nothing, since it may have begun before them.
//
// # Never too many
//
// By the judgement of requests, at most a share of the workers of one key and role is
// aside. The share is rounded up, so that one of two can be. A worker that would exceed
// it is kept in service, and shown so. A worker is in the pools of all its keys, and each
// of them must have room. Workers that a probe or a refused connection has set aside need no
// room and take none: if ten of twelve are dead, all ten are aside.
//
// The judgement of requests takes from no pool its last worker in service: some of its
// answers may be right, or late, and to refuse all requests would turn a partial fault into a
// full one. A worker that is the last of all its pools stays in service. One that is the last
// of some, such as the only one with an adapter, is aside for the others: who has nobody else
// may still be sent to it ([Tried]), until it is seen that it cannot be reached. If probes have set all aside, a request waits for one that may come back
// ([Tracker.MayReturn]).
//
// # Asking a mate
//
// A request that one worker has refused may be sent once more, to another worker, if the
// first one refuses more than its pools do, by its rate or by a run of refusals
// ([Tracker.Began] ends a run). [Tracker.AskMate] decides that, and keeps the budget: one
// in a hundred ended requests, and what comes back after a mate has served the request
// ([Tracker.MateServed]). A part of the budget is kept for workers whose refusals are
// hardly by accident. If they are surely not by accident, the budget may be overdrawn. A
// worker that recovers needs no budget: its trial is to find out about its refusals. The
// mate's answer is the proof that [Report] takes.
//
// # Contract
//
// [Tracker.Report] takes what an attempt has met at one worker, [Tracker.HandoffFailed]
// and [Tracker.HandoffServed] what it has met between two.
//
// [Tracker.Changes], [Tracker.Standing], [Tracker.Begin] and [Tracker.End] are the filter
// of internal/load. They take no lock, except the one of the ring of changes after a
// change. [Tracker.Allows], [Tracker.Aside] and [Tracker.Spare] take none.
//
// [Tracker.Run] sends at most MaxProbes a second, spread evenly. Suspects come first, in
// the order in which they are due. If workers that are aside wait too, every fourth probe
// is for one of those. If new workers wait to be asked, every other is for one of those.
// If there is nothing to ask, Run sleeps.
//
// A new worker is asked for knockPath, which costs nothing in any engine, at its endpoint
// and at its bootstrap address. That is no probe of it: a suspicion that comes meanwhile is
// looked into at once, and no answer, or one of somebody else, changes nothing. While there
// is none it is asked again, less and less often up to MaxHold, since a gateway may begin to
// listen later. If a Baton has answered, the probes that could bring the worker back ask at
// the address where it did, until somebody else answers there: prefill's own page comes also
// if its bootstrap address leads back. A server error is no such answer, since it may be that
// of an Envoy whose Baton is away.
//
// [Tracker.Update] forgets workers that have left. A worker starts healthy if it returns,
// or if its address, its number of ports, its part in prefill or its bootstrap address has
// changed. One with a new id at the address of one that has left within [goneKept] is that
// worker: its errors count on, and one that was aside recovers, unless it had refused
// connections. Whoever answers at a worker's endpoint with none of the models that its engine
// was first heard to serve is another engine: it gets no requests until one with such a model
// answers there, or the record changes. If only its pools change, everything known of it is
// kept.
//
// # What it costs
//
// With n workers, each in few pools, a report, a suspicion, a hand-off, and the begin and
// the end of a probe cost O(log n), by the agenda of probes. They cost that again for
// each port of the worker if a rank cannot be reached, or if its partner is to blame.
// Lookup, Allows, Spare and AskMate cost O(1). A pick applies each change once, and looks
// at all workers only after some thousands of changes. Update and Status look at all
// workers, and Update sorts those of a pool that has become too small.
//
// # Invariants
//
//   - Only moveLocked changes a state between healthy, doubted, aside and recovering. It
//     keeps the counters of the pools, the agenda and the ring in step.
//   - The counters of a pool are those of its members. judged is at most the limit after
//     each call, since a worker that finds no room is kept in service.
//   - A worker is on at most one agenda of probes: of the suspects, if it is in service, or
//     of the schedule, if it is aside and not probing. At most one probe of it is under way.
//   - A caller that has read a version with Changes, and then calls Standing, sees all
//     changes up to that version.
//
// # What it does not do
//
// It reads no clock except in Run (other methods are given the time), does not retry
// requests, does not judge load, and logs nothing: transitions go to [Hooks]. It knows
// which attempts belong to one request only from [Report]. Its evidence ends with the
// process.
//
// [Suspect]: Tracker.Suspect
package health
