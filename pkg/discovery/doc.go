// Package discovery turns what sources say about workers into one immutable
// [worker.Snapshot], which requests read without waiting.
//
// Contract. A [Source] (a watched file, etcd) sends a full listing first and changes
// after it, as [Event] values. Each source has a [Reducer], which takes the events one
// at a time. It is pure. It refuses every event after which its set would be a guess:
// revisions that repeat or go back, gaps, deletes of keys that it does not hold. The
// [View] runs the sources, merges their sets in the order of the configuration,
// publishes the result with one atomic store and tells subscribers what changed.
//
// The states of one source:
//
//	         Begin               List
//	empty ──────────► listing ─────────► watching ◄──┐ List, Batch
//	                     │                │     └────┘
//	                     │ Broken,        │ Broken, refusal, Begin
//	                     │ refusal        ▼
//	                     └──► (stays)   stale ─────────► watching
//	                                       List
//
// A List that says that it is stale already leads to stale.
//
// Invariants:
//
//   - A source has a set if and only if it is watching or stale. A set changes only when
//     a listing replaces it or an accepted batch is applied; readers never see
//     a part of either.
//   - While a source is watching, its set is exactly what the store holds at Revision.
//   - If a source loses its store, it becomes stale: its last good set is served, marked
//     as stale, without a time limit (docs/behaviour.md#store-away). It is better to
//     work with stale workers than with some of them or none.
//   - The view is not ready, and has no worker, until every source has sent its first
//     full set. Afterwards it stays ready: an outage of discovery is no reason to
//     refuse requests that the known workers can serve.
//   - Every worker that is left out, and every one that cannot be picked yet, is
//     reported: a repeated id or endpoint, an unreadable entry, an ineligible worker and
//     a source's note on a worker are each a [Problem] in [Status], and are reported once through [Hooks].
//
// If an id or an endpoint is claimed twice: between sources, the earlier source keeps
// both. Within one source the first key in order keeps an id, and the entry that was
// written last keeps an endpoint, unless its worker drains and another one's does not
// ([ByPrecedence]). The reason is that only one process can listen at an address, and that a
// restarted worker registers again at its old address before its old lease has ended.
//
// # Records that expire
//
// A key whose lease runs out shows only that whoever kept it is silent: the machine may be
// dead, or the way to the store. A deletion and an end look the same to a watch. [Expiry]
// wraps a source with leases, and believes an absence only after it has asked the absent
// (docs/behaviour.md#expired). A key goes on purpose if it has no lease, if its worker
// drains (a registrar writes that before it revokes a lease), or if the same revision writes
// another key. Any other one has expired:
//
//	          half or more of a role within one lease
//	expired ────────────────────────────────────────► stale
//	(drains)                                        (is served)
//	   │ a lease later                                  │
//	   ├────────────────────────────────────────────────┘ refuses connections; serves
//	   ▼                                                  other models; silent to two
//	  gone                                                witnesses, and not the last of a role
//
// Either ends, without a gap, as soon as the source has a worker of the same address, id or
// key again. Then its old id has moved: see [Change]. Requests that wait on the old id go on,
// since the process that serves them is most likely the same. While few have expired they
// drain, and are not dropped at once: the leases of registers that are cut off at one moment
// end within a third of a lease, and the first of them must not be lost before that is seen.
//
// A start has no set from before to compare with, but a file may (package cache). Of the
// time between nothing is known, so more is asked for: the role has nobody else, and the worker
// has answered with one of its models. Until then it drains, for ten leases at most.
//
// expiries is the pure core.
//
// [Ineligible] applies docs/behaviour.md#eligible: an SGLang prefill worker without
// bootstrap data stays in the set, so that it is shown, and is not picked.
//
// What this package does not do: it opens no connection and reads no file (the
// subpackages do), judges no health, and keeps no load or cache contents. Subscribers
// drop those when a worker leaves.
package discovery
