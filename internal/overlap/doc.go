// Package overlap turns the index's answers into a column of a pick: how many leading
// blocks of a prompt each rank of a pool holds, in the pool's order. Only this package
// knows both the index's numbering and the pool's order, so that pkg/kvindex and
// pkg/picker need not know each other.
//
// # Contract
//
// [Lookup.Of] asks the index once. For a rank whose events come, the column has what the
// events told. For a worker without events, and for a prompt that is known only by
// estimate, it has what was routed there. If a prompt was lately routed to a rank with
// events, and exceeds what those told, the rest is added as predicted: its event is on
// the way, and until it comes the next prompt with the same beginning should not go to
// another rank. The weight of these blocks is 1 unless configured otherwise, since the
// worker will have computed them before it comes to that next prompt. If the pool's ranks
// have their slots in a row, the column is the index's own memory, else a copy. Nothing
// is allocated once an [Answer] has grown to the size of the pool and the pool's layout
// is known.
//
// Blocks in host memory and on disk have columns of their own, each with the blocks
// beyond the nearer memory, and only from events. Blocks in a cache outside of the
// workers are one number for all ranks of the list: the longest beginning of the prompt
// that one of them has written there. If two ranks have written a half each, only the
// first half counts.
//
// Of what events told of a rank that is doubted ([Lookup.Doubt]) only a part counts, on
// every tier. [Answer.Told] has all of it. [Answer.Outside] is the most that a rank holds
// which is not in the list, though its worker serves the same: it drains, for example.
//
// [Routes] notes what was routed, and has the index drop it when its time is over. It
// remembers of the latest 65,536 blocks that other replicas told of that they did.
//
// A layout says which slots the ranks of a pool have. It is worked out once for a worker
// set and a numbering of slots, and again when either has changed. If the numbering
// changes while an answer is read, the answer is read again.
//
// # What it does not do
//
// It weighs nothing and does not know load.
package overlap
