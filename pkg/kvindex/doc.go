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
// [Index] is what the rest of Baton sees; [Tree] is the fast implementation,
// [Map] the plain, obviously correct one and the yardstick. Events of one rank
// must be given in the order the engine made them, by one goroutine at a time;
// events of different ranks may be given concurrently, and Overlap may be
// called by any number of goroutines at any time.
//
// What the plugin itself has sent where is in the same index ([Index].Route): of
// workers that publish no events it is all that is known, and of the others it
// is what their events have not told yet. It sees no restart, no traffic of
// others, and no eviction but those that events tell of, so it is a guess, and
// believed for a while only.
//
// What is nearest counts most, so a query answers for each rank in several
// views ([View]): the leading blocks on Device; those on Device or Host; those on
// Device, Host or Disk; those on External; and those of prompts that were routed there. A union is
// nearly always a beginning of the prompt where a tier alone is not: an engine
// that moves blocks from one tier to the next moves ends first. External is a
// cache outside of the workers, to which they write the beginnings of prompts whether
// or not they keep them: it has a view to itself.
//
// Every attached rank has a [Slot], a small dense number; answers are slices
// indexed by it, so that a query writes no map and allocates nothing. A view
// beyond the first has a slot of its own, from the first block on that tier
// until the rank is detached, and one walk answers for all. The views' slots
// come in groups of 64 that mirror a group of ranks: the numbering changes
// rarely, and ranks in a row have views in a row. A rank that only Route has
// named has a slot, too, until it is detached; those of which nothing is left go
// now and then, when others come.
//
// # The tree
//
// A [Tree] has a node for each run of blocks without a branch: a cache line
// that says where the run's hashes lie in one large array, and who holds how
// many of its first blocks. A rank that holds other than the first ones of a
// run has the run split, so that one number a rank and node is enough. A query
// walks from the root: it finds a child by hash, reads the run in sequence, and
// moves the ranks that have come so far on by what they hold; where many hold a
// node their numbers lie in the order of the slots and are copied. Nothing is
// hashed by a query, and it costs a few cache misses a node.
//
// The engine hashes of a rank are in a table of its own, from name to block. A
// block keeps its number whatever becomes of the nodes, so that a split changes
// no name. Most events append a block to a run that its rank alone holds, or
// take its last one: each is one search and one store to the node.
//
// Prompts that were routed to a rank lie in the same nodes, without names: what
// the view Routed holds is always whole beginnings, so beside the nodes' numbers
// only the ends of prompts are kept, and where they part. A prompt routed again
// moves its end to the front of a list; what is over, and beyond the budget what
// was routed longest ago, goes from its end up to where another prompt needs it.
// An event that takes a block off Device ends the prompts below it; one that
// stores blocks needs to change nothing, since Device then counts as many.
//
// All of it lies in arenas that are reserved once, never move, and hold no
// pointers. Writers take turns (Tree.mu). Queries take no lock: they check a
// node's version and length after reading it and begin anew if it was changed
// under them. So a torn read can neither crash (every number read was valid for
// some node, and is compared with the arena's end), nor go on for ever (each
// node matches a block or ends the walk), nor give an impossible answer (what a
// change in the making can show is not answered with). Of each rank the answer
// is such that each block counted was held at some instant of the call, and the
// next one was not: two ranks' counts may be of different instants.
//
// Limits: 2^20 slots, 2^28 blocks, runs of 1,023 blocks (longer sequences have
// several nodes). A version has 24 bits: a query would have to sleep through
// exactly a multiple of 8 million changes of one node to be misled by it.
//
// Where a removal in the middle of runs shatters them, they stay shattered
// until they are gone: runs are not joined again. Tables of names do not shrink
// until the rank is cleared, or memory is short.
//
// Whoever has much to do gives the lock up after each slice: clearing a rank,
// shedding, a removal of many blocks, a rank's first block on a tier, for which
// what it holds is entered into a view; until then the view answers with less. Others wait for a slice at most, of some
// ten thousand blocks, or for one event of an engine, whose length nobody but
// the engine bounds; so does a query that was torn 64 times and asks for
// the lock. A rank that is cleared or detached is busy until all of it is gone:
// its own events, and Check, wait for the end.
//
// # Memory
//
// A block costs 16 bytes, more where it shares its run with room to grow, and
// each name 13 to 32, by how full the rank's table is; a rank that holds
// anything costs 6 KiB at least. What is in use stays below
// [TreeConfig.MaxBytes]. Where less than a 32nd of it is free, a rank that holds
// most, or nearly, loses an eighth of that, and so on until a 16th is free:
// what was stored longest ago first, but never a block before those that follow
// it, nor one that the event at hand goes on from. That is done in small steps,
// of which each event does a few; an event waits for more only where there is
// no room left at all. What is old is judged by a sample, and by node: blocks of
// one node are as old as the newest of them. It is counted in [Stats].Shed, and
// later events of the engine about such blocks count as unknown. A rank whose
// engine has removed most of what it held has its table made smaller first.
//
// What was routed takes an eighth of the budget at most, where an end of a prompt
// counts as a node with room to grow. Events that find no room drop told blocks
// before it, and it only where nothing told is left but what they go on from.
// Shedding a block from Device ends the prompts below it, as an event would.
//
// What those who feed the index must keep of its blocks, such as their salts, is
// taken from the budget by [Tree.Reserve], an eighth of it at most.
//
// Freed memory is kept for its own kind. Where another kind is needed and the
// budget would be passed, what makes whole pages of it is given back to the
// system. Free nodes and short runs do not; they count as used then, so that
// what is taken stays within an eighth of the budget, nearly always a 16th. Not
// counted: what shedding notes of what is to go, a 64th of the budget at most;
// the clearing of a rank, 8 bytes for each of its blocks up to 8 MiB;
// directories of tables, 4 bytes for each of their segments; the ends of routed
// prompts, some 100 bytes each; and copies for a dump, some 24 bytes for each
// block of a rank while it is copied, and 8 for each different block of the dump.
//
// # Dumps
//
// [Tree.Copy] copies what one rank holds, in slices of some 4,000 names, so that
// writers of other ranks never wait long; the rank's own must not write
// meanwhile, and so whoever feeds it takes the copy, together with how far the
// feed has come. A [DumpWriter] puts copies of ranks into a dump: engine names,
// tiers and chains, a prefix once whoever holds it, with a note of the caller's
// for each rank. So a dump is consistent for each rank, at an instant of its own.
// [ReadDump] checks a dump from end to end before anything is made of it;
// [RankCopy.Load] stores a rank's blocks as events would, within the budget. What
// was routed is not dumped, nor the order in which blocks were stored: the first
// that a full index sheds after a load are any.
//
// # Invariants
//
// Numbered, walked by Check and named in its errors:
//
//   - I1: slots and ranks are a bijection; a slot below the table's length that
//     has no rank is on the free list, once, or in one group of views.
//   - I2: every block is held on at least one tier.
//   - I3: a view's count of blocks at a sequence hash equals the number of its
//     rank's blocks that have that hash and are on the view's tiers; no count
//     is zero.
//   - I4: a slot's bit is set at a sequence hash exactly when its view's count
//     there is above zero; a rank with blocks on a tier has the tier's view.
//   - I5: no sequence hash without a holder is kept, and no bit belongs to a
//     slot without an attached rank.
//   - I6: a rank's block counts by tier equal what a walk counts.
//   - I7: the view Routed holds what the rank's sendings, from the first block to
//     their ends, are, each end once; ends and branches are marked, and nothing
//     else; a list of sendings is ordered by time and has each once; the blocks
//     are within the budget.
//
// Of a Tree I3 to I5 read: the further names of a view's block beyond the first
// are counted; a node's number for a slot is n exactly when its rank names the
// node's first n blocks, and no others of it, on the view's tiers, or 0 where the
// view is being made; no number belongs to a slot without an attached rank, none
// to two entries, none exceeds the run.
// And:
//
//   - I8: a node's blocks say so; its run is 1 to room long; it is found under
//     its parent by its first hash, and knows how many blocks are before it; it
//     counts its children; without children its last block has a name.
//   - I9: each block counts the names that all ranks have for it, and the ranks
//     it was routed to.
//   - I10: every run of the arena is one node's or free; free runs do not touch
//     and are on the list of their length; pages given back are inside of them.
//   - I11: the table of children has each child of a node of several, once.
//   - I12: every name is found from its own bucket; no name is beyond a bucket
//     with a free place; every segment is in one table or free.
//
// # What it does not do
//
// It reads no wire format and opens no socket (kvevents does), weighs nothing
// (the picker does), and never guesses: a block whose parent is unknown is
// refused and counted, not hung somewhere.
package kvindex
