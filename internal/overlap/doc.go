// Package overlap turns the answers of the index into a column of a pick: how
// many leading blocks of a prompt each rank of a pool holds, in the pool's
// order. It is the one place that knows both the index's numbering and the
// pool's, so that pkg/kvindex and pkg/picker need not know each other.
//
// # Contract
//
// [Lookup.Of] asks the index that the workers' events feed, and, for workers
// that publish none and for prompts that are known by estimate only, the index
// of what was routed before; each only where its answer is needed. The column
// is the index's own answer where the pool's ranks have their slots in a row,
// else a copy of its pieces. Nothing is allocated once an [Answer] has grown to
// the size of the pool and the pool's layout is known.
//
// What a rank holds below its device is told in columns of their own, each
// beyond the nearer ones, and only by events.
//
// A layout says which slots the ranks of a pool have. It is worked out once for
// a set of workers and a numbering of slots, and again when either has changed.
// The numbering may change while an answer is being read: then it is read again.
//
// # What it does not do
//
// It weighs nothing and knows no load.
package overlap
