// Package kvindex knows which rank holds which KV blocks, and answers for a
// chain of block hashes how many leading blocks each rank has.
//
// # Hashes
//
// A block's [LocalHash] depends on its tokens and on the [Salt] (LoRA adapter,
// cache salt) only; its [SequenceHash] is chained on that of its parent and so
// names the whole prefix. Both are XXH3-64 with the seeds Dynamo uses, so one
// hash means the same thing in both. An [EngineHash] is the engine's own name
// of a block. It is opaque: it serves to resolve parents and removals of one
// rank and is never recomputed.
//
// # Contract
//
// [Index] is what the rest of Baton sees; [Map] is the plain, obviously correct
// implementation and the yardstick for faster ones. Events of one rank must be
// given in the order the engine made them, by one goroutine at a time; events
// of different ranks may be given concurrently, and Overlap may be called by
// any number of goroutines at any time.
//
// [Routed] is the approximate index for workers that publish no events: it
// remembers what the plugin itself has sent where.
//
// Every attached rank has a [Slot], a small dense number; answers are slices
// indexed by it, so that a query writes no map and allocates nothing. Map and
// Routed share one [Slots] table, hence one numbering.
//
// # Invariants
//
// Numbered, walked by Check and named in its errors:
//
//   - I1: slots and ranks are a bijection; a slot below the table's length that
//     has no rank is on the free list, once.
//   - I2: every block is held on at least one tier.
//   - I3: a rank's count of Device blocks at a sequence hash equals the number
//     of its blocks that have that hash and are on Device; no count is zero.
//   - I4: a slot's bit is set at a sequence hash exactly when its rank's count
//     there is above zero.
//   - I5: no sequence hash without a holder is kept, and no bit belongs to a
//     slot without an attached rank.
//   - I6: a rank's block counts by tier equal what a walk counts.
//   - I7 (Routed): the recency list is ordered by time, has every entry once,
//     and is no longer than the budget.
//
// # What it does not do
//
// It reads no wire format and opens no socket (kvevents does), weighs nothing
// (the picker does), and never guesses: a block whose parent is unknown is
// refused and counted, not hung somewhere.
package kvindex
