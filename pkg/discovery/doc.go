// Package discovery turns what sources say about workers into one immutable
// [worker.Snapshot] that requests read without waiting.
//
// Contract. A [Source] (a watched file, etcd, Kubernetes) sends a full listing
// first and changes after it, as [Event] values. A [Reducer] per source takes
// them one at a time; it is pure, and refuses whatever would make its set a
// guess: revisions that repeat or go back, gaps, deletes of keys it does not
// hold. The [View] runs the sources, merges their sets in the order they were
// configured in, publishes the result with one atomic store and tells
// subscribers what changed.
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
// Invariants:
//
//   - A source has a set if and only if it is watching or stale. A set is only
//     ever replaced by a listing or advanced by one accepted batch; neither is
//     ever seen half done.
//   - While a source is watching, its set is exactly the source's at Revision.
//   - A source that loses touch goes stale: its last good set is served, marked,
//     for as long as it takes (docs/behaviour.md#store-away). Working from stale workers is better than
//     working from some of them, or none.
//   - The view is not ready, and holds no worker, until every source has sent its
//     first full set. Once ready it stays ready: an outage of discovery is no
//     reason to refuse requests that the known workers can serve.
//   - No worker is dropped or shadowed in silence: a repeated id or endpoint, an
//     entry that cannot be read and a worker that cannot be picked yet are each a
//     [Problem] in [Status], and reported once through [Hooks].
//
// Who keeps an id or an endpoint that is claimed twice: between sources the
// earlier source keeps both. Within one source the first key in order keeps an
// id; an endpoint goes to the entry written last, since a worker that restarts
// at its old address registers anew while its old lease still has time to run,
// and only one process can listen there.
//
// [Ineligible] decides docs/behaviour.md#eligible: an SGLang prefill worker without
// bootstrap data stays in the set, so that it is seen, and is not to be picked.
//
// What this package does not do: it dials nobody and reads no file (the
// subpackages do), judges no health (set aside and probes live elsewhere), and
// keeps no load or cache contents; subscribers drop those when a worker leaves.
package discovery
