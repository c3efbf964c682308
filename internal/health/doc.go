// Package health sets failing workers aside and lets them back gently, from
// what the requests themselves meet and from a small probe.
//
// # States of a worker
//
//	healthy ───── failure ─────► aside ◄──── due / probe failed ────► probing
//	   ▲                          ▲  │                                  │
//	   │                          │  └── a stalled one answers ──┐      │
//	   │                       failure                           ▼      │
//	   └── answers a request ─────┴────────────────────────── recovering ◄── probe succeeded
//
// What each is for:
//
//   - healthy: in service.
//   - aside, probing: not picked. Probing is aside while a probe is under way.
//   - recovering: half open. One request at a time may try it, as long as the
//     pool has a healthy worker beside it; if it has none, all may. A probe
//     alone does not make a worker healthy: engines answer /health while their
//     scheduler is stuck. The next request that is answered does.
//
// # Failures
//
// A refused connection, a lost one, an overdue prefill and a time-out set a
// worker aside at once, server errors after a few in a row. While recovering,
// one failure of any kind does. A request that was never started blames nobody.
// Each relapse doubles the time before the next probe, up to a limit.
//
// An answer shows that a stall (overdue, time-out) is over, so that worker is
// let back without a probe. After errors and broken connections it shows
// nothing: it may have been under way before.
//
// # Never too many
//
// Of the workers of one key and role no more than a share is aside, rounded up,
// so that one of two can go. Whoever would exceed it is spared: it stays in
// service and is shown as spared. A worker is in the pools of all its keys and
// must find room in each.
//
// The last worker in service of a pool is not set aside by server errors: some
// of its answers may be right, and refusing all would make a partial fault a
// whole one. It is by a refused or lost connection or a stall, where the share
// allows it (a pool of one): nothing would be answered anyway, waiting for it
// costs each client a time-out, and without it the request gets a clear 503
// with Retry-After at once. The probe brings it back within about a second.
//
// # Contract
//
// [Tracker.Report] takes what a request has met. [Tracker.Limits],
// [Tracker.Allows], [Tracker.Begin] and [Tracker.End] are the filter of
// internal/load: without locks, from an atomic view. [Tracker.Run] probes;
// without a worker aside it sleeps. [Tracker.Update] forgets workers that have
// left; one that returns, or moves to another address, starts healthy.
//
// # What it does not do
//
// It reads no clock but in Run (time is an argument), does not retry requests,
// judges no load, and logs nothing: transitions go to [Hooks].
package health
