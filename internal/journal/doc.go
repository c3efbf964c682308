// Package journal keeps the latest decisions in memory, for people. Their form is
// [decision.Record].
//
// # Contract
//
// A [Journal] is a ring of fixed size. [Journal.Keep] copies a record into the next slot;
// [Journal.Add] passes the empty record of that slot to the caller, to fill it in. Both
// return a [Handle], by which later events are added (the prefill leg has started, the
// answer has ended): [Journal.Update], [Journal.Mark] and [Journal.End]. Once a newer
// record has taken the slot, writes through the old handle change nothing and return
// false. [Journal.Recent] copies records out, newest first.
//
// Writing is cheap enough for every request: it allocates nothing, and locks one slot
// only. So two requests wait for each other only if the ring has gone all the way round
// between them.
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
