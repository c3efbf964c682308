// Package overlap turns the answers of the index into a column of a pick: how
// many leading blocks of a prompt each rank of a pool holds, in the pool's
// order. It is the one place that knows both the index's numbering and the
// pool's, so that pkg/kvindex and pkg/picker need not know each other.
//
// # Contract
//
// [Lookup.Of] asks the index once and reads its views: what a rank told; of
// workers that publish no events, and for prompts that are known by estimate
// only, what was routed there before. What was routed lately to a rank that
// tells, and exceeds what it told, is added as predicted: the event about it is
// on its way, and until then the next prompt with the same beginning should not
// go elsewhere. Its weight is 1 unless configured otherwise, as the worker will
// have computed it before it comes to that next prompt. The column
// is the index's own answer where the pool's ranks have their slots in a row,
// else a copy of its pieces. Nothing is allocated once an [Answer] has grown to
// the size of the pool and the pool's layout is known.
//
// What a rank holds below its device is told in columns of their own, each
// beyond the nearer ones, and only by events. What is in a cache outside of the
// workers is one number for all ranks of the list: the longest beginning of the prompt
// that any of them has written there. Two that wrote a half each count as the first
// half alone.
//
// [Routes] notes what was routed, and wakes the index when its time is over.
//
// A layout says which slots the ranks of a pool have. It is worked out once for
// a set of workers and a numbering of slots, and again when either has changed.
// The numbering may change while an answer is being read: then it is read again.
//
// # What it does not do
//
// It weighs nothing and knows no load.
package overlap
