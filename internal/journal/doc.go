// Package journal keeps the latest decisions in memory, for people. What a
// decision's record holds is [decision.Record]'s.
//
// # Contract
//
// A [Journal] is a ring of fixed size. [Journal.Keep] copies a record into the next
// slot, [Journal.Add] hands the empty record in it to the caller to fill; both return
// a [Handle]. What becomes known later (the prefill leg has started, the answer has ended) is
// written through the handle with [Journal.Update], [Journal.Mark] and
// [Journal.End]. A handle outlives its slot without harm: once a newer record
// has taken the slot, writes through the old handle do nothing and say so.
// [Journal.Recent] copies records out, newest first.
//
// Writing is cheap enough for every request: no allocation, and a lock of one
// slot only, so that two requests never wait for each other unless the ring has
// gone all the way round between them.
//
// # Invariants
//
//   - Slot i holds a record whose sequence number is i modulo the size, or none.
//   - The sequence number of a slot never goes back.
//
// # What it does not do
//
// It decides nothing, writes nothing to disk and imports no package that does.
package journal
