package kvindex

import "github.com/seed-60ae5743/baton/pkg/worker"

// removeSlice is how many blocks of an event are removed before other writers get the
// lock.
const removeSlice = 1024

const (
	// clearSlice is how many names or blocks are cleared before other writers get the
	// lock.
	clearSlice = 1 << 15
	// clearPart is about how many names of a rank are sorted together.
	clearPart = 32 * clearSlice
)

// sorter sorts blocks between two slices.
type sorter [2][]blockID

// sort sorts the blocks in s[0] by counting digits of twelve bits, and returns them.
// Their ids must be lower than the argument.
func (s *sorter) sort(end blockID) []blockID {
	const digit = 12
	from, to := s[0], s[1]
	if cap(to) < len(from) {
		to = make([]blockID, len(from), cap(from))
	}
	to = to[:len(from)]
	for shift := 0; end>>shift != 0; shift += digit {
		var at [1 << digit]uint32
		for _, b := range from {
			at[b>>shift%(1<<digit)]++
		}
		sum := uint32(0)
		for i, n := range at {
			at[i], sum = sum, sum+n
		}
		for _, b := range from {
			d := b >> shift % (1 << digit)
			to[at[d]] = b
			at[d]++
		}
		from, to = to, from
	}
	s[0], s[1] = from, to
	return from
}

// Remove implements [Index].
func (t *Tree) Remove(r worker.Rank, e Removed) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ranks.idle(r) == nil {
		return ErrUnknownRank
	}
	for done := 0; done < len(e.Blocks); done += ahead {
		if done%removeSlice == removeSlice-ahead {
			t.giveUp()
		}
		if t.eviction.pressed(ahead) { // removing a block in the middle of a run takes a new node
			t.shedShare(ahead)
		}
		rk := t.ranks.idle(r)
		if rk == nil {
			return ErrUnknownRank
		}
		t.ledger.takeSome(rk, e.Blocks[done:min(done+ahead, len(e.Blocks))], e.Tier)
	}
	return nil
}

// clearRank drops everything that the rank has, in slices. It sorts the blocks first,
// so that it visits each node once and in the order of memory. A query in between sees
// what it would see if the blocks were removed one by one.
func (t *Tree) clearRank(rk *treeRank) {
	t.eviction.leave(rk)
	t.ledger.forgetAll(rk)
	t.ranks.start(rk)
	for t.prompts.forgetSome(rk) {
		t.giveUp()
	}
	work := t.work // other ranks' clears may need a sorter while mu is given up
	t.work = sorter{}
	for from, more := uint64(0), true; more; {
		work[0] = work[0][:0]
		for more && len(work[0]) < clearPart {
			from, work[0] = t.ledger.names.take(&rk.names, from, clearSlice, work[0])
			more = from != 0
			if more {
				t.giveUp()
			}
		}
		all := work[0]
		if end := t.trie.blocks.next; len(all) <= clearSlice {
			all = work.sort(end)
		} else {
			t.mu.Unlock() // the rank is busy, so its blocks stay
			all = work.sort(end)
			t.mu.Lock()
		}
		for len(all) > clearSlice {
			t.ledger.release(rk, all[:clearSlice])
			all = all[clearSlice:]
			t.giveUp()
		}
		t.ledger.release(rk, all)
	}
	t.work = work
	t.ranks.finish(rk)
}
