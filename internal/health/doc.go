// Package health sets failing workers aside and lets them back gently, from
// what the requests themselves meet and from a small probe.
//
// # States of a worker
//
//	healthy ───── failure ─────► aside ◄──── due / probe failed ────► probing
//	   ▲                          ▲  │                                  │
//	   │                          │  └── a stalled one serves ───┐      │
//	   │                       failure                           ▼      │
//	   └── serves a request ──────┴────────────────────────── recovering ◄── probe succeeded
//
// What each is for:
//
//   - healthy: in service.
//   - aside, probing: not picked. Probing is aside while a probe is under way.
//   - recovering: half open. One request at a time may try it, as long as there
//     is a healthy worker beside it; if there is none, all may. A probe alone
//     does not make a worker healthy: engines answer /health while their
//     scheduler is stuck. The next request that is served to its end does.
//
// # Evidence
//
// What a request has met at a worker may be the worker's doing, the request's or
// somebody else's. Each sets a worker aside only as far as it is evidence:
//
//   - A refused connection: at once. Nobody is served by keeping it.
//   - A probe that is refused, or not answered in time: at once, for no client can
//     bring that about. Suspects are probed while they are in service ([Suspect]
//     and most failures ask for that); any answer clears them, a 404 too, since
//     not every engine has /health.
//   - Server errors, answers that break off, lost connections: a run of them that the
//     rate of the others of its pools does not explain (rates.go), for what all have
//     alike is the requests' doing; while recovering, one where the worker fails more
//     than the others do. Where another worker has served the same request
//     ([Report].Proven) that question is answered: a few in a row are enough, refusals
//     count as well, and one lost connection is enough.
//   - Requests that are too slow: two different ones, with none served between
//     and neither asked before the latest that was. One alone is never enough,
//     however often it is tried.
//   - Hand-offs between two workers: whoever has failed with two different partners
//     within a minute, with none that succeeded between (pairs.go).
//
// Where each rank of a worker has a port of its own, all of this is of the rank: one may
// be dead while the others serve. Whose port refuses a connection has the others probed
// at once, for they may have gone together. Ranks that share a port are one.
//
// What was never started blames nobody. Each relapse while recovering doubles the
// time before the next probe, up to a limit.
//
// A request served to its end shows that a stall (overdue, time-out) is over, so
// that worker is let back without a probe. After errors and broken connections it
// shows nothing: it may have been under way before.
//
// # Never too many
//
// Of the workers of one key and role no more than a share is aside by judgement of
// requests, rounded up, so that one of two can go. Whoever would exceed it is
// spared: it stays in service and is shown as spared. A worker is in the pools of
// all its keys and must find room in each. Workers that cannot be reached, by a
// refused connection or a failed probe, need no room and take none: with ten of
// twelve dead all ten are aside.
//
// The last worker in service of a pool is not set aside by server errors: some
// of its answers may be right, and refusing all would make a partial fault a
// whole one. It is by what else there is, where the share allows it (a pool of
// one): nothing would be answered anyway, waiting for it costs each client a
// time-out, and without it the request gets a clear 503 with Retry-After at once.
// The probe brings it back within about a second.
//
// # Asking a mate
//
// A request that one worker has refused may be asked once more, of another, where
// the worker refuses more than its pools do, by its rate or by a run of refusals
// ([Tracker.Began] ends one). [Tracker.AskMate] says so and keeps
// the budget: of a hundred ended requests one, and those that a mate has served for
// nothing ([Tracker.MateServed]). A part of it is kept for workers whose refusals are
// hardly an accident; those of which they are none may overdraw it. A worker that
// recovers needs none: what it refuses is what its trial is about. The mate's answer
// is the proof that [Report] takes.
//
// # Contract
//
// [Tracker.Report] takes what an attempt has met, [Tracker.HandoffFailed] and
// [Tracker.HandoffServed] what two workers have met together.
//
// [Tracker.Changes], [Tracker.Standing], [Tracker.Begin] and [Tracker.End] are the
// filter of internal/load: they take no lock but, when something has changed,
// that of the ring of changes. [Tracker.Allows], [Tracker.Aside] and [Tracker.Spare] take none.
//
// [Tracker.Run] probes, at most MaxProbes a second, spread evenly: suspects first,
// those due longest first, and every fourth one of a worker aside where both wait.
// Without a suspect and a worker aside it sleeps.
//
// [Tracker.Update] forgets workers that have left; one that returns, or moves to
// another address, starts healthy. Workers keep what is known of them when their
// pools change.
//
// # What it costs
//
// With n workers, each in few pools: a report, a suspicion, a hand-off and the
// begin and the end of a probe cost O(log n), by the agenda of probes, and for each port
// of its worker once more where a rank cannot be reached or its partner is to blame;
// Lookup, Allows, Spare and AskMate O(1). A pick applies each change once and looks at all
// workers only after some thousands of them. Update and Status look at all, and
// Update sorts those of a pool that has become too small.
//
// # Invariants
//
//   - A state changes between healthy, aside and recovering in moveLocked alone,
//     which keeps the counters of the pools, the agenda and the ring in step.
//   - The counters of a pool are those of its members. judged is at most the limit
//     after each call, since who needs room finds it or is spared.
//   - A worker is on one agenda at most: of suspects in service or, aside and not
//     probing, of the schedule. One probe of it is under way at most.
//   - Whoever has seen a version of Changes, and asks Standing after it, has seen
//     all that led to it.
//
// # What it does not do
//
// It reads no clock but in Run (time is an argument), does not retry requests,
// judges no load, and logs nothing: transitions go to [Hooks]. It does not know
// which attempts were of one request but by what it is told, and no evidence in
// it outlives the process.
//
// [Suspect]: Tracker.Suspect
package health
