package kvindex

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// What was routed to a rank is the prompts that were sent there and are believed
// in yet: a tree of blocks, in the nodes of the index, held in the view Routed. A
// sending is the end of such a prompt; of the prompts' tree only ends and
// branches are noted (mark), for all other blocks have one that follows. A block
// is held as long as a sending ends there or below it. Invariant: I7.

// routed is what a rank has in the view Routed.
type routed struct {
	slot   Slot
	blocks int
	marks  map[blockID]mark // nil: nothing was routed to it so far
}

// mark is a block where a sending ends, or that other than one held block
// follows.
type mark struct {
	end  int32  // the sending; 0: none
	kids uint32 // held blocks that follow
}

// sending is a prompt that was routed, by its last block.
type sending struct {
	rank       *treeRank
	block      blockID
	guess      Guess
	until      time.Duration
	seq        uint64 // of Route: higher is later
	prev, next int32  // in the list of its guess, latest first
}

// sendings has all of them. The first are the heads of the lists: next the
// latest, prev the oldest.
type sendings struct {
	all    []sending
	free   []int32
	blocks int // of all ranks
	seq    uint64
}

// firstSending is the least number of one.
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

// latest puts a sending at the front of its guess's list.
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

// count returns how many there are.
func (s *sendings) count() int { return len(s.all) - len(s.free) - int(firstSending) }

// oldest returns the one that was routed longest ago, 0 if there is none.
func (s *sendings) oldest() (e int32) {
	for head := range firstSending {
		if x := s.all[head].prev; x >= firstSending && (e == 0 || s.all[x].seq < s.all[e].seq) {
			e = x
		}
	}
	return e
}

// routeSlice is how many blocks are noted before other writers get their turn.
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

// endBytes is what a prompt's end takes beside its blocks: a node, and the room
// of its run to grow.
const endBytes = nodeBytes + 8*blockBytes

// routedBytes is the view's share of the memory budget.
func (t *Tree) routedBytes() int { return t.cfg.MaxBytes / 8 }

// overRouted returns how many blocks of the view are to go: those beyond its own
// limit, or as many as make up for what it has beyond its share of the memory.
func (t *Tree) overRouted() int {
	bytes := t.sent.blocks*blockBytes + t.sent.count()*endBytes - t.routedBytes()
	return max(t.sent.blocks-t.cfg.Route.MaxBlocks, (bytes+blockBytes-1)/blockBytes)
}

func (t *Tree) routeSome(r worker.Rank, chain []LocalHash, g Guess, now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.time.tell(now)
	for len(chain) > 0 && t.hopeless(len(chain)) { // its beginning is better than nothing
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
		t.credit = 0 // it may take more to store in a crowd
	}
	t.clock++
	last, grown := t.lead(rk, chain)
	t.endAt(rk, last, grown, g)
	for over := t.overRouted(); over > 0; over = t.overRouted() {
		t.recall(t.sent.oldest(), over)
	}
	return t.nextExpiry()
}

// adopt makes a rank known that no events name. Those adopted of whom nothing is
// left go from time to time: numbers of ranks should not change with each lull.
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

// lead holds every block of the chain in the view, and returns the last and
// whether it was not held before.
func (t *Tree) lead(rk *treeRank, chain []LocalHash) (last blockID, grown bool) {
	var id nodeID
	var fork blockID // the last block that was held; 0: none, or nothing is new
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

// match returns how many of a run's first n blocks are the chain's.
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

// unnamed returns blocks that no engine has named. They are good until it is
// called again.
func (t *Tree) unnamed(chain []LocalHash) []Block {
	t.fresh = t.fresh[:0]
	for _, l := range chain {
		t.fresh = append(t.fresh, Block{Local: l})
	}
	return t.fresh
}

// endAt notes a sending that ends at a held block; leaf: no held one follows.
// One that ended there before is the same prompt, routed again.
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

// markOf asks the block first whether anybody ever marked it.
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
