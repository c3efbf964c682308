// Package cache keeps a source's last good set on disk, so that a plugin which starts
// while its store is away serves the workers that it knew
// (docs/behaviour.md#state-survives, docs/behaviour.md#store-away).
//
// Contract. A [Source] wraps another source. It passes all events of the wrapped source
// on, unchanged and in order, and returns the sink's answers to it. The set that the
// sink has accepted is written to a file, in the form of package file, by rename. The
// file is written soon after a change, at most five times a second; ten times in
// [Config.MaxAge] if nothing changes; and at the end, unless the disk is slow.
//
// The file is read once, when the first Run begins. It is served when the wrapped source
// has sent no listing within [Config.Patience], or has returned before. The source then sends
// what the file has: a listing with the epoch "cache", and at once a Broken that says
// how old the listing is. The view serves it, marked stale, until the wrapped source
// sends a listing: that has another epoch and replaces it. A file that is older than
// MaxAge is not served, since other workers may have its addresses by then. A file with
// another [Config.Identity] is not served either. [Source.Before] tells the same workers to a
// wrapped source that may ask those whom its store has lost (discovery.Expiry); so the file keeps
// how long the lease of each record is.
//
// Invariants:
//
//   - The file has a set for which the wrapped source vouched when it was sent. A set
//     that is stale, or that was read from the file, is never written. A worker whose record
//     has expired is written as its record was.
//   - An empty set is written if the source sends one, but it is not served: it is better
//     to tell clients to try again than that the model does not exist.
//   - A disk that hangs or refuses does not delay discovery: one goroutine of the
//     source does all writes. When the wrapped source returns, Run waits a tenth of
//     a second for that goroutine; when the context ends, five seconds.
//   - The file is only an aid. If it is missing, damaged or cannot be written, that is
//     logged and has no other effect.
//
// What this package does not do: it asks no store, judges no worker, and does not merge
// what several plugins write to one file. The last writer wins, so each plugin needs a
// file of its own.
package cache
