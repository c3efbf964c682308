package kvindex

import "time"

// expire ends up to n sendings whose time is over; long ones count for several. It
// reports whether no such sending is left.
func (p *prompts) expire(n int) bool {
	for head := range firstSending {
		for e := p.sent.all[head].prev; e >= firstSending && p.sent.all[e].until <= p.time.now; e = p.sent.all[head].prev {
			if n <= 0 {
				return false
			}
			had := p.sent.blocks
			p.end(e)
			n -= 1 + (had-p.sent.blocks)/64
		}
	}
	return true
}

// nextExpiry returns when the next sending's time is over, or the zero time if there is
// none.
func (p *prompts) nextExpiry() (next time.Time) {
	for head := range firstSending {
		if e := p.sent.all[head].prev; e >= firstSending {
			if at := p.time.at(p.sent.all[e].until); next.IsZero() || at.Before(next) {
				next = at
			}
		}
	}
	return next
}

// recall shortens a sending's prompt by up to n blocks from its end, as far as no other
// sending needs them.
func (p *prompts) recall(e int32, n int) {
	s := &p.sent.all[e]
	to := s.block
	if m, _ := p.markOf(s.rank, to); m.kids > 0 { // other sendings hold all of its blocks
		p.end(e)
		return
	}
	for range n {
		to = p.trie.before(to)
		if to == 0 || p.isMarked(s.rank, to) {
			break
		}
	}
	p.raise(e, to)
}

// raise moves the end of a sending up to a block before its own. If another sending
// ends at that block, only the one that was routed later stays. With block 0 the
// sending ends.
func (p *prompts) raise(e int32, to blockID) {
	if to == 0 {
		p.end(e)
		return
	}
	s := &p.sent.all[e]
	rk, from := s.rank, s.block
	m, marked := p.markOf(rk, to)
	if !marked {
		m.kids = 1
	}
	s.block = to
	switch {
	case m.end == 0:
		m.end = e
	case p.sent.all[m.end].seq > s.seq:
		p.sent.drop(e)
	default:
		p.sent.drop(m.end)
		m.end = e
	}
	p.setMark(rk, to, m)
	p.unend(rk, from)
}

// end ends a sending.
func (p *prompts) end(e int32) {
	rk, b := p.sent.all[e].rank, p.sent.all[e].block
	p.sent.drop(e)
	p.unend(rk, b)
}

// unend takes the end off the mark of b. If no held block follows b, it removes b from
// the view, and the blocks above it up to the next mark.
func (p *prompts) unend(rk *treeRank, b blockID) {
	tr := p.trie
	m, _ := p.markOf(rk, b)
	m.end = 0
	if m.kids > 0 {
		p.setMark(rk, b, m)
		return
	}
	delete(rk.sent.marks, b)
	for b != 0 {
		id := tr.blocks.node(b)
		n := &tr.nodes[id]
		start, end := n.start(), n.start()+blockID(n.load().length())
		first := tr.blocks.plain(start, b)
		for first > start && !p.isMarked(rk, first-1) { // the mark is another rank's
			first = tr.blocks.plain(start, first-1)
		}
		up := tr.before(first)
		tr.blocks.unrefAll(first, b)
		tr.holders.set(n, rk.sent.slot, uint32(first-start))
		p.count(rk, -int(b-first)-1)
		if b+1 == end {
			tr.trim(id)
		}
		b = up
		if b == 0 {
			return
		}
		if m, marked := p.markOf(rk, b); marked {
			m.kids--
			p.setMark(rk, b, m)
			return
		}
	}
}

// disprove is called when an event takes block b off Device. It removes b and the
// blocks that follow it from the view Routed. Of the sendings that end there, the one
// routed last is shortened to end before b; the others end.
func (p *prompts) disprove(rk *treeRank, b blockID) {
	if rk.sent.blocks == 0 {
		return
	}
	n := &p.trie.nodes[p.trie.blocks.node(b)]
	if p.trie.holders.cut(n, rk.sent.slot) <= uint32(b-n.start()) {
		return
	}
	up := p.trie.before(b)
	if m, marked := p.markOf(rk, b); marked && m.kids == 0 {
		p.raise(m.end, up)
		return
	}
	// This is rare, since engines evict ends first, so it may look at all marks.
	var below []int32
	last := 0
	for x, m := range rk.sent.marks {
		if m.end == 0 || !p.trie.follows(x, b) {
			continue
		}
		below = append(below, m.end)
		if p.sent.all[m.end].seq > p.sent.all[below[last]].seq {
			last = len(below) - 1
		}
	}
	for i, e := range below {
		if i != last {
			p.end(e)
		}
	}
	p.raise(below[last], up)
}

// forgetSome removes some of a rank's sendings, and reports whether any are left.
func (p *prompts) forgetSome(rk *treeRank) bool {
	had, n := p.sent.blocks, 0
	for _, m := range rk.sent.marks {
		if m.end == 0 {
			continue
		}
		n++
		if n > expireSlice || had-p.sent.blocks > 64*expireSlice {
			return true
		}
		p.end(m.end)
	}
	return false
}
