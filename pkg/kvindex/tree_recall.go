package kvindex

import "time"

// Expire implements [Index].
func (t *Tree) Expire(now time.Time) (next time.Time) {
	for {
		next, done := t.expireSome(now)
		if done {
			return next
		}
	}
}

// expireSlice is how many sendings end, or how many times 64 blocks are dropped, before
// other writers get the lock.
const expireSlice = 64

func (t *Tree) expireSome(now time.Time) (next time.Time, done bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.time.tell(now)
	done = t.expire(expireSlice)
	return t.nextExpiry(), done
}

// expire ends up to n sendings whose time is over; long ones count for several. It
// reports whether no such sending is left.
func (t *Tree) expire(n int) bool {
	for head := range firstSending {
		for e := t.sent.all[head].prev; e >= firstSending && t.sent.all[e].until <= t.time.now; e = t.sent.all[head].prev {
			if n <= 0 {
				return false
			}
			had := t.sent.blocks
			t.endSending(e)
			n -= 1 + (had-t.sent.blocks)/64
		}
	}
	return true
}

// nextExpiry returns when the next sending's time is over, or the zero time if there is
// none.
func (t *Tree) nextExpiry() (next time.Time) {
	for head := range firstSending {
		if e := t.sent.all[head].prev; e >= firstSending {
			if at := t.time.at(t.sent.all[e].until); next.IsZero() || at.Before(next) {
				next = at
			}
		}
	}
	return next
}

// recall shortens a sending's prompt by up to n blocks from its end, as far as no other
// sending needs them.
func (t *Tree) recall(e int32, n int) {
	s := &t.sent.all[e]
	to := s.block
	if m, _ := t.markOf(s.rank, to); m.kids > 0 { // other sendings hold all of its blocks
		t.endSending(e)
		return
	}
	for range n {
		if to = t.before(to); to == 0 {
			break
		}
		if _, marked := t.markOf(s.rank, to); marked {
			break
		}
	}
	t.raise(e, to)
}

// raise moves the end of a sending up to a block before its own. If another sending
// ends at that block, only the one that was routed later stays. With block 0 the
// sending ends.
func (t *Tree) raise(e int32, to blockID) {
	if to == 0 {
		t.endSending(e)
		return
	}
	s := &t.sent.all[e]
	rk, from := s.rank, s.block
	m, marked := t.markOf(rk, to)
	if !marked {
		m.kids = 1
	}
	s.block = to
	switch {
	case m.end == 0:
		m.end = e
	case t.sent.all[m.end].seq > s.seq:
		t.sent.drop(e)
	default:
		t.sent.drop(m.end)
		m.end = e
	}
	t.setMark(rk, to, m)
	t.unend(rk, from)
}

func (t *Tree) endSending(e int32) {
	rk, b := t.sent.all[e].rank, t.sent.all[e].block
	t.sent.drop(e)
	t.unend(rk, b)
}

// unend takes the end off the mark of b. If no held block follows b, it removes b from
// the view, and the blocks above it up to the next mark.
func (t *Tree) unend(rk *treeRank, b blockID) {
	m, _ := t.markOf(rk, b)
	m.end = 0
	if m.kids > 0 {
		t.setMark(rk, b, m)
		return
	}
	delete(rk.sent.marks, b)
	for b != 0 {
		id := t.blocks.node(b)
		n := &t.nodes[id]
		start, end := n.start(), n.start()+blockID(n.load().length())
		first := b
		for first > start && !t.isMarked(rk, first-1) {
			first--
		}
		up := t.before(first)
		for x := first; x <= b; x++ {
			t.blocks.unref(x, 1)
		}
		t.setCut(n, rk.sent.slot, uint32(first-start))
		t.countRouted(rk, -int(b-first)-1)
		if b+1 == end {
			t.trim(id)
		}
		if b = up; b == 0 {
			return
		}
		if m, marked := t.markOf(rk, b); marked {
			m.kids--
			t.setMark(rk, b, m)
			return
		}
	}
}

func (t *Tree) isMarked(rk *treeRank, b blockID) bool {
	_, marked := t.markOf(rk, b)
	return marked
}

// before returns the block before b in its sequence, or 0 if b is the first one.
func (t *Tree) before(b blockID) blockID {
	n := &t.nodes[t.blocks.node(b)]
	if b > n.start() {
		return b - 1
	}
	id := n.parent()
	if id == 0 {
		return 0
	}
	p := &t.nodes[id]
	return p.start() + blockID(p.load().length()) - 1
}

// disprove is called when an event takes block b off Device. It removes b and the
// blocks that follow it from the view Routed. Of the sendings that end there, the one
// routed last is shortened to end before b; the others end.
func (t *Tree) disprove(rk *treeRank, b blockID) {
	if rk.sent.blocks == 0 {
		return
	}
	n := &t.nodes[t.blocks.node(b)]
	if t.cutOf(n, rk.sent.slot) <= uint32(b-n.start()) {
		return
	}
	up := t.before(b)
	if m, marked := t.markOf(rk, b); marked && m.kids == 0 {
		t.raise(m.end, up)
		return
	}
	// This is rare, since engines evict ends first, so it may look at all marks.
	var below []int32
	last := 0
	for x, m := range rk.sent.marks {
		if m.end == 0 || !t.follows(x, b) {
			continue
		}
		if below = append(below, m.end); t.sent.all[m.end].seq > t.sent.all[below[last]].seq {
			last = len(below) - 1
		}
	}
	for i, e := range below {
		if i != last {
			t.endSending(e)
		}
	}
	t.raise(below[last], up)
}

// follows reports whether x is b or comes after b in a sequence.
func (t *Tree) follows(x, b blockID) bool {
	for node := t.blocks.node(b); x != 0; {
		id := t.blocks.node(x)
		if id == node {
			return x >= b
		}
		x = t.before(t.nodes[id].start())
	}
	return false
}

// forgetSome removes some of a rank's sendings, and reports whether any are left.
func (t *Tree) forgetSome(rk *treeRank) bool {
	had, n := t.sent.blocks, 0
	for _, m := range rk.sent.marks {
		if m.end == 0 {
			continue
		}
		if n++; n > expireSlice || had-t.sent.blocks > 64*expireSlice {
			return true
		}
		t.endSending(m.end)
	}
	return false
}

// recallFor is called when nothing more can be shed. While n blocks cannot be stored,
// it ends the sending that was routed longest ago. It reports whether n blocks can be
// stored now.
func (t *Tree) recallFor(n int) bool {
	for t.short(n) {
		e := t.sent.oldest()
		if e == 0 {
			return false
		}
		t.endSending(e)
	}
	return true
}
