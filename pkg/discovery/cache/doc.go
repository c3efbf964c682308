// Package cache keeps a source's last good set on disk, so that a plugin that
// starts while its store is away serves the workers it knew
// (docs/behaviour.md#state-survives, docs/behaviour.md#store-away).
//
// Contract. A [Source] wraps another one. Everything that one sends is passed on
// unchanged and in order, with the sink's answer. What the sink has accepted is
// written to the file, in the form of package file, by rename: soon after the
// first change, at most five times a second, ten times in [Config.MaxAge] when
// nothing changes, and in the end always, unless the disk is slow.
//
// Once in its life, when the wrapped source has sent no listing within
// [Config.Patience] of the first Run, or has given up before, the file is read
// and sent in its place: a listing of epoch "cache", followed at once by a
// Broken that says how old it is. The view then serves it, marked stale, until
// the wrapped source lists: that listing is of another epoch and replaces it. A
// file that is older than MaxAge is not served: by then its addresses may be
// others'. Nor is one of another [Config.Identity].
//
// Invariants:
//
//   - The file holds a set that the wrapped source vouched for when it was sent.
//     A set that is stale, or was itself read from the file, is never written.
//   - An empty set is written when the source says so and not served: clients are
//     better told to try again than that no such model exists.
//   - A disk that hangs or refuses does not hold up discovery: writes have a
//     goroutine of their own, one at most in the life of the source. When the
//     wrapped source gives up, Run waits a tenth of a second for it; when the
//     context ends, five.
//   - The file is an aid. That it is missing, damaged or cannot be written is
//     logged, and changes nothing else.
//
// What this package does not do: it asks no store, judges no worker, and does
// not merge what several plugins write to one file (the last one wins; give each
// its own).
package cache
