package kvindex

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A sending is a prompt that was routed to a rank and is still believed to be held
// there; it is named by its last block. The prompts of a rank form a tree of blocks, in
// the nodes of the index. A block of it is held in the view Routed as long as a sending
// ends at the block or below it. Marks are kept only for the blocks where a sending
// ends or where the tree branches: every other block of it has one held block after it.
// Invariant: I7.

// routed is the state of one rank's view Routed.
type routed struct {
	slot   Slot
	blocks int
	marks  map[blockID]mark // nil: nothing was routed to the rank so far
}

// mark is kept for a block where a sending ends, or that is not followed by exactly one
// held block.
type mark struct {
	end  int32  // the sending that ends at the block, as an index of sendings.all; 0: none
	kids uint32 // how many held blocks follow the block
}

// sending is one routed prompt.
type sending struct {
	rank       *treeRank
	block      blockID
	guess      Guess
	until      time.Duration
	seq        uint64 // of Route calls; a higher one is later
	prev, next int32  // the list of all sendings with the same guess, latest first
}

// sendings has the sendings of all ranks. The first entries of all are the heads of the
// lists, one for each guess: their next is the latest sending, their prev the oldest.
type sendings struct {
	all    []sending
	free   []int32
	blocks int // routed blocks of all ranks
	seq    uint64
}

// firstSending is the lowest index that a sending may have: those below are heads of
// lists.
const firstSending = int32(numGuesses)

func newSendings() sendings {
	s := sendings{all: make([]sending, firstSending)}
	for i := range s.all {
		s.all[i].prev, s.all[i].next = int32(i), int32(i)
	}
	return s
}

func (s *sendings) unlink(e int32) {
	p, n := s.all[e].prev, s.all[e].next
	s.all[p].next, s.all[n].prev = n, p
}

// latest puts a sending at the front of the list for its guess.
func (s *sendings) latest(e int32) {
	head := int32(s.all[e].guess)
	n := s.all[head].next
	s.all[e].prev, s.all[e].next = head, n
	s.all[head].next, s.all[n].prev = e, e
}

func (s *sendings) get() int32 {
	if n := len(s.free); n > 0 {
		e := s.free[n-1]
		s.free = s.free[:n-1]
		return e
	}
	s.all = append(s.all, sending{})
	return int32(len(s.all) - 1)
}

func (s *sendings) drop(e int32) {
	s.unlink(e)
	s.all[e] = sending{}
	s.free = append(s.free, e)
}

// count returns how many sendings there are.
func (s *sendings) count() int { return len(s.all) - len(s.free) - int(firstSending) }

// oldest returns the sending that was routed longest ago, or 0 if there is none.
func (s *sendings) oldest() (e int32) {
	for head := range firstSending {
		if x := s.all[head].prev; x >= firstSending && (e == 0 || s.all[x].seq < s.all[e].seq) {
			e = x
		}
	}
	return e
}

// routeSlice is how many blocks Route notes before other writers get the lock.
const routeSlice = 4096

// Route implements [Index].
func (t *Tree) Route(r worker.Rank, chain []LocalHash, g Guess, now time.Time) (next time.Time) {
	t.Expire(now)
	chain = chain[:min(len(chain), t.cfg.Route.MaxBlocks, t.routedBytes()/blockBytes)]
	for n := min(routeSlice, len(chain)); ; n = min(n+routeSlice, len(chain)) {
		next = t.routeSome(r, chain[:n], g, now)
		if n == len(chain) {
			return next
		}
	}
}

// endBytes is what the end of a prompt costs apart from the prompt's blocks: a node,
// and the room in which its run may grow.
const endBytes = nodeBytes + 8*blockBytes

// routedBytes is the share of the memory budget that the view Routed of all ranks may
// use.
func (t *Tree) routedBytes() int { return t.cfg.MaxBytes / 8 }

// overRouted returns how many routed blocks have to go so that MaxBlocks and the share
// of the memory are kept. Zero or less: none.
func (t *Tree) overRouted() int {
	bytes := t.sent.blocks*blockBytes + t.sent.count()*endBytes - t.routedBytes()
	return max(t.sent.blocks-t.cfg.Route.MaxBlocks, (bytes+blockBytes-1)/blockBytes)
}

func (t *Tree) routeSome(r worker.Rank, chain []LocalHash, g Guess, now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.time.tell(now)
	for len(chain) > 0 && t.hopeless(len(chain)) { // the beginning of the prompt is better than nothing
		chain = chain[:len(chain)/2]
	}
	if len(chain) == 0 {
		return t.nextExpiry()
	}
	if t.pressed(len(chain)) {
		t.shedShare(len(chain))
	}
	rk := t.known(r)
	if rk == nil {
		rk = t.adopt(r)
	}
	if !t.recallFor(len(chain)) {
		return t.nextExpiry()
	}
	if rk.sent.marks == nil {
		slot := t.slots.needView(rk.slot, Routed)
		if slot >= maxSlots {
			return t.nextExpiry()
		}
		rk.sent.marks, rk.sent.slot = make(map[blockID]mark), slot
		t.credit = 0 // with another slot, a store into a crowd may take more
	}
	t.clock++
	last, grown := t.lead(rk, chain)
	t.endAt(rk, last, grown, g)
	for over := t.overRouted(); over > 0; over = t.overRouted() {
		t.recall(t.sent.oldest(), over)
	}
	return t.nextExpiry()
}

// adopt adds a rank that is not attached, for Route. When there are too many such
// ranks, it removes those with nothing left; not at once, since ranks that have nothing
// in a quiet moment would otherwise change their slots again and again.
func (t *Tree) adopt(r worker.Rank) *treeRank {
	if t.strangers >= t.tooMany {
		for _, rk := range inOrder(t.ranks, func(rk *treeRank) Slot { return rk.slot }) {
			if !rk.attached && !rk.busy && rk.sent.blocks == 0 {
				t.lose(rk)
			}
		}
		t.tooMany = max(minStrangers, 2*t.strangers)
	}
	t.strangers++
	return t.newRank(r)
}

// lead makes the view hold every block of the chain. It returns the last block, and
// whether that block was not held before.
func (t *Tree) lead(rk *treeRank, chain []LocalHash) (last blockID, grown bool) {
	var id nodeID
	var fork blockID // the last block of the chain that was held before; 0: none, or all were
	i := 0
	for i < len(chain) {
		kid, _ := t.kid(id, uint64(chain[i]))
		if kid == 0 {
			break
		}
		n := &t.nodes[kid]
		start, length := n.start(), int(n.load().length())
		m := uint32(t.match(start, min(length, len(chain)-i), chain[i:]))
		if cut := t.cutOf(n, rk.sent.slot); cut < m {
			if !grown {
				fork, grown = last, true
				if cut > 0 {
					fork = start + blockID(cut) - 1
				}
			}
			for b := start + blockID(cut); b < start+blockID(m); b++ {
				t.blocks.ref(b)
			}
			t.setCut(n, rk.sent.slot, m)
			t.countRouted(rk, int(m-cut))
		}
		last, id, i = start+blockID(m)-1, kid, i+int(m)
		if int(m) < length {
			break
		}
	}
	if rest := chain[i:]; len(rest) > 0 {
		if !grown {
			fork, grown = last, true
		}
		last = t.extend(&adding{gain: append(t.gain[:0], rk.sent.slot)}, last, t.unnamed(rest))
		t.countRouted(rk, len(rest))
	}
	if grown && fork != 0 {
		m, marked := t.markOf(rk, fork)
		if !marked {
			m.kids = 1
		}
		m.kids++
		t.setMark(rk, fork, m)
	}
	return last, grown
}

// match returns how many of the first n blocks of the run at start are the chain's.
func (t *Tree) match(start blockID, n int, chain []LocalHash) int {
	run := t.blocks.local[start : int(start)+n]
	for i := range run {
		if LocalHash(run[i].Load()) != chain[i] {
			return i
		}
	}
	return n
}

func (t *Tree) countRouted(rk *treeRank, n int) {
	rk.sent.blocks += n
	t.sent.blocks += n
	rk.stats.Routed = rk.sent.blocks
}

// unnamed returns the blocks of the chain without engine hashes. They are valid until
// the next call.
func (t *Tree) unnamed(chain []LocalHash) []Block {
	t.fresh = t.fresh[:0]
	for _, l := range chain {
		t.fresh = append(t.fresh, Block{Local: l})
	}
	return t.fresh
}

// endAt notes a sending that ends at the held block b. leaf says that no held block
// follows b. A sending that ended at b before is replaced: it is the same prompt,
// routed again.
func (t *Tree) endAt(rk *treeRank, b blockID, leaf bool, g Guess) {
	m, marked := t.markOf(rk, b)
	if !marked && !leaf {
		m.kids = 1
	}
	if m.end != 0 {
		t.sent.unlink(m.end)
	} else {
		m.end = t.sent.get()
	}
	t.sent.seq++
	s := &t.sent.all[m.end]
	*s = sending{rank: rk, block: b, guess: g, until: t.time.now + t.cfg.Route.ttl(g), seq: t.sent.seq}
	t.sent.latest(m.end)
	t.setMark(rk, b, m)
}

// markOf returns the mark of a block, or false if it has none. It reads the block's
// flag first, which is cheaper than the map.
func (t *Tree) markOf(rk *treeRank, b blockID) (m mark, marked bool) {
	if !t.blocks.flagged(b) {
		return m, false
	}
	m, marked = rk.sent.marks[b]
	return m, marked
}

func (t *Tree) setMark(rk *treeRank, b blockID, m mark) {
	if m.end == 0 && m.kids == 1 {
		delete(rk.sent.marks, b)
		return
	}
	t.blocks.flag(b)
	rk.sent.marks[b] = m
}
