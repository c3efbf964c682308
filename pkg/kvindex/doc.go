// Package kvindex knows which rank holds which KV blocks. For a chain of block
// hashes it answers how many leading blocks each rank holds.
//
// # Hashes
//
// A block's [LocalHash] depends only on the block's tokens, on its pictures and on the
// [Salt] (LoRA adapter, cache salt). It is XXH3-64 with the seeds that Dynamo uses, so
// that a hash means the same in Baton and in Dynamo. An [EngineHash] is the
// engine's own name of a block. It is opaque: the index uses it to find the parents and
// the removed blocks that one rank's events name, and never computes it.
//
// # Contract
//
// [Index] is what the rest of Baton sees, and [Tree] implements it. Events of one rank must be
// given in the order in which the engine made them, by one goroutine at a time. Events of
// different ranks may be given concurrently. Any number of goroutines may call Overlap at
// any time.
//
// The same index notes which prompts the plugin has routed to which rank
// ([Index].Route). For a worker without KV events this is all that is known; for other
// workers it stands in until their events arrive. The note is a guess and is believed only
// for a while: the plugin sees no restart of the engine, no traffic that others send, and
// only those evictions that events tell of.
//
// Blocks on near tiers count more than blocks on far ones. A query therefore answers for
// each rank in several views ([View]): the leading blocks on Device; on Device or Host; on
// Device, Host or Disk; on External; and of prompts that were routed to the rank. The
// views for Host and Disk include the nearer tiers, since an engine that moves blocks to
// the next tier moves the ends of prompts first: what is on Host alone is seldom the
// beginning of a prompt. External is a cache outside of the workers. Workers write the
// beginnings of prompts to it whether or not they keep them, so External is a view alone.
//
// Every attached rank has a [Slot], a small dense number. Answers are slices indexed by
// slot, so that a query writes no map and allocates nothing. The view OnDevice uses the
// rank's slot. The other views have slots of their own, so that one walk answers for all
// views. These are made in groups of 64, one for each rank of a group of 64, when the first
// of the ranks needs the view, and stay: so the numbering changes rarely, and the views of
// neighbouring ranks are neighbours. A rank that
// only Route has named also has a slot until it is detached. When other such ranks come,
// those with nothing left are now and then detached.
//
// # The tree
//
// A [Tree] has a node for each run of blocks without a branch. A node is one cache line.
// It says where the run's hashes lie in one large array, and for each holder how many of
// the run's first blocks the holder has. If a rank holds blocks that are not the first
// ones of the run, the run is split: so one number for each rank and node is enough.
// A query walks from the root. It finds a child by the child's first hash, compares the
// run block by block, and raises the answer of each slot that has held everything so far.
// If many ranks hold a node, their numbers are stored in the order of the slots and are
// copied in bulk. A query computes no hash of blocks, and costs a few cache misses a node.
//
// Each rank has a table of its own from engine hash to block. A block keeps its number
// when nodes are split, so that a split changes no table. Most events append a block to
// a run that only their rank holds, or remove its last block: each is one search and one
// store to the node.
//
// Prompts that were routed to a rank lie in the same nodes, but have no engine hashes.
// The view Routed always holds whole beginnings of prompts. So the tree keeps, beside
// the numbers in the nodes, only the blocks where routed prompts end and where they
// part. A prompt that is routed again moves to the front of a list. When its time is over,
// or when the view exceeds its budget and the prompt was routed longest ago, its blocks are
// dropped from its end up to the first block that another prompt needs. An event that
// takes a block off Device ends the routed prompts below the block. An event that stores
// blocks leaves the view as it is, since the same blocks then count on Device.
//
// All of this lies in arenas that are reserved once, never move, and hold no pointers.
// Writers take turns (Tree.mu). Queries take no lock: they check a node's version and
// length after reading the node, and begin again if a writer has changed it meanwhile. A
// torn read cannot crash, since every number that is read was valid for some node and is
// compared with the arena's end. It cannot loop for ever, since each node matches a block or
// ends the walk. It cannot give an impossible answer, since an answer that may
// come from a half-made change is discarded. For each rank there was an instant during the
// call when the rank held every block that is counted and did not hold the next one. The
// instants of two ranks may differ.
//
// Limits: 2^20 slots, 2^28 blocks, runs of 1,023 blocks (a longer sequence has several
// nodes). A version has 24 bits and changes by 2: a query would be misled only if a
// multiple of 8 million changes of one node happened while it ran.
//
// When removals in the middle split runs, the parts are not joined again before they are
// gone. The tables of engine hashes do not shrink until the rank is cleared or memory is
// short.
//
// Long work gives the lock up after each slice: clearing a rank, shedding, removing many
// blocks, and filling a view that a rank needs for the first time; until it is filled,
// the view answers with less. So another writer waits for one slice of some ten thousand
// blocks, or for one event, whose length only the engine bounds. So does a query that
// was torn 64 times and then takes the lock. A rank that is being cleared or detached
// is busy to the end: its own events wait.
//
// # Parts
//
// A Tree has the lock and the order of the work; the rest is done by its parts. Each part
// is one type, and no other part changes its fields. The parts lie in the Tree by value.
// Each has a method check, which Tree.Check calls in builds with the tag invariants.
//
//   - ranks: which ranks are known, attached, and busy.
//   - trie: the nodes, and the memory of their blocks (runs). It has two parts of its own:
//     kids finds the child of a node, and holders says how many of a node's blocks count
//     for a slot. The trie knows no names, and of ranks only the slots. A query needs
//     nothing else.
//   - ledger: what events say: the tables of engine hashes (nameStore), and the views that
//     events fill.
//   - prompts: the view Routed.
//   - budget: how much memory the parts use, and how much is free.
//   - eviction: which blocks are dropped when memory is short, and when.
//
// An arrow goes to what a part calls; none goes back:
//
//	Tree → eviction → ledger → prompts → trie → kids, holders, runs
//	eviction, ledger → budget, which counts what trie and nameStore have, and gives memory back
//	eviction → ranks, which it only reads
//
// # Memory
//
// A block costs 16 bytes, and its share of the room in which its run may grow. An engine
// hash costs 13 to 32 bytes, depending on how full the rank's table is. A rank that holds
// anything costs at least 6 KiB. The memory in use stays below [TreeConfig.MaxBytes].
//
// When less than 1/32 of the budget is free, a rank that holds most, or nearly most, loses
// an eighth of its blocks. This is repeated until 1/16 is free. The rank loses the blocks that
// were stored longest ago first, but never a block before the blocks that follow it, nor a
// block that the present event continues from. Each event does a few small steps of
// this work; it waits for more only if there is no room at all. The age of blocks is judged
// from a sample and by node: all blocks of a node are as old as its newest. Blocks lost
// this way are counted in [Stats].Shed; later events of the engine about them count as
// unknown. A rank whose engine has removed most of its blocks gets a smaller table before
// any rank loses blocks.
//
// Routed prompts take at most an eighth of the budget, where the end of each prompt counts
// as a node with room to grow. When a routed prompt finds no room, blocks that events have
// stored are dropped for it first. When an event finds no room, routed prompts are dropped
// only after every block that may be shed. Shedding a block from Device ends the routed
// prompts below it, as an event would.
//
// [Tree.Reserve] counts what those who feed the index keep about its blocks, such as
// their salts, as part of the budget, up to an eighth of it.
//
// Freed memory is kept for data of the same kind. If data of another kind needs memory and
// the budget would be exceeded, freed memory that makes whole pages is given back to the
// system. Free nodes and short runs cannot be given back; they then count as used, so that
// the memory taken exceeds the budget by at most an eighth, nearly always by less than a
// 16th. Not counted are: the list of what shedding is about to drop, at most a 64th of the
// budget; 16 KiB for each rank that has lost blocks, by which [Tree.Kept] knows; the clearing of a rank, 8 bytes for each of its blocks, up to 8 MiB; the
// directories of tables, 4 bytes for each segment; the ends of routed prompts, some 100
// bytes each; and copies for a dump, some 24 bytes for each block of a rank while it is
// copied, and 8 for each different block of the dump.
//
// # Dumps
//
// [Tree.Copy] copies what one rank holds, in slices of some 4,000 names, so that writers of
// other ranks never wait long. Events of the copied rank must wait meanwhile. So the
// goroutine that feeds the rank takes the copy, and notes with it how far the feed has
// come. A [DumpWriter] writes copies of ranks into a dump: engine hashes, tiers and chains,
// each prefix once however many ranks hold it, and a note of the caller's for each rank. So
// a dump is consistent for each rank, at an instant of its own. [ReadDump] checks a whole
// dump before any of it is used. [RankCopy.Load] stores a rank's blocks as
// events would, within the budget. A dump has no routed prompts and not the order in which
// blocks were stored: an index that is full after a load may shed any block first.
//
// # Invariants
//
// Numbered; the tests check them after each of many random operations, and name them in
// errors:
//
//   - I1: slots and ranks are a bijection; a slot below the table's length that
//     has no rank is on the free list, once, or in one group of views.
//   - I2: every block is held on at least one tier.
//   - I3: the names of a block beyond its first are counted for each view.
//   - I4: a node's number for a slot is n exactly if the slot's rank names the node's
//     first n blocks, and no other block of it, on the view's tiers, or is 0 while the
//     view is being filled; a rank with blocks on a tier has the tier's view.
//   - I5: no number belongs to a slot without an attached rank, no slot has two numbers
//     in a node, and no number exceeds the run.
//   - I6: a rank's block counts by tier equal what a walk counts.
//   - I7: the view Routed holds exactly the blocks from the first one to the ends
//     of the rank's sendings; each end has one sending; ends and branches are
//     marked, and no other block; a list of sendings is ordered by time and has
//     each sending once; the blocks are within the budget.
//   - I8: a node's blocks refer to the node; its run has 1 to room blocks; the node
//     is found under its parent by its first hash, and knows how many blocks are
//     before it; it counts its children; without children its last block has a
//     name or is routed.
//   - I9: each block counts the names that all ranks have for it, and the ranks
//     it was routed to.
//   - I10: every run of the arena belongs to one node or is free; free runs do not
//     touch and are on the list for their length; pages given back are inside
//     of them.
//   - I11: the table of children has each child of a node of several, once.
//   - I12: every name is found from its own bucket; no name is beyond a bucket
//     with a free place; every segment is in one table or free.
//   - I13: the memory in use is within the budget, and what is kept beside the index is
//     within its share.
//   - I14: a sweep is of a rank that is known; the names that it has gathered are a heap
//     and within their share.
//
// # What it does not do
//
// It reads no wire format and opens no socket (kvevents does), weighs nothing
// (the picker does), and never guesses a block's place: a block whose parent is unknown
// is refused and counted.
package kvindex
