//go:build invariants

package kvindex

import (
	"fmt"
	"maps"
)

// checkRouted walks from the end of every sending of a rank to the root.
func (p *prompts) checkRank(rk *treeRank, w *truth) error {
	all := make(map[blockID]mark) // of every routed block
	for b, m := range rk.sent.marks {
		if m.end == 0 {
			continue
		}
		if s := &p.sent.all[m.end]; s.rank != rk || s.block != b || !p.trie.blocks.flagged(b) {
			return fmt.Errorf("kvindex: I7: sending %d ends at block %d, is marked at block %d", m.end, s.block, b)
		}
		held := all[b]
		_, follows := all[b]
		held.end = m.end
		all[b] = held
		for x := b; x != 0 && !follows; {
			w.refs[x]++
			w.counted[heldBy{rk.sent.slot, x}] = true
			x = p.trie.before(x)
			if x != 0 {
				held, follows = all[x]
				held.kids++
				all[x] = held
			}
		}
	}
	if len(all) != rk.sent.blocks || rk.stats.Routed != rk.sent.blocks {
		return fmt.Errorf("kvindex: I7: counted %d routed blocks, kept %d and %d", len(all), rk.sent.blocks, rk.stats.Routed)
	}
	maps.DeleteFunc(all, func(_ blockID, m mark) bool { return m.end == 0 && m.kids == 1 })
	if !maps.Equal(all, rk.sent.marks) {
		return fmt.Errorf("kvindex: I7: ends and branches are %v, kept %v", all, rk.sent.marks)
	}
	return nil
}

// check walks the lists of sendings.
func (p *prompts) check(rs *ranks) error {
	s, listed, marked, blocks := &p.sent, 0, 0, 0
	for head := range firstSending {
		last := head
		for e := s.all[head].next; e != head; last, e = e, s.all[e].next {
			x, before := &s.all[e], &s.all[last]
			if x.prev != last || x.guess != Guess(head) || x.rank == nil || x.rank.sent.marks[x.block].end != e {
				return fmt.Errorf("kvindex: I7: sending %d is linked wrongly", e)
			}
			if last != head && (before.seq < x.seq || before.until < x.until) {
				return fmt.Errorf("kvindex: I7: sending %d is later than the one before it", e)
			}
			listed++
		}
	}
	for _, rk := range rs.all {
		blocks += rk.sent.blocks
		for _, m := range rk.sent.marks {
			if m.end != 0 {
				marked++
			}
		}
	}
	if listed != marked || listed != s.count() {
		return fmt.Errorf("kvindex: I7: %d sendings listed, %d marked, %d free of %d", listed, marked, len(s.free), len(s.all))
	}
	if over := p.over(); blocks != s.blocks || over > 0 {
		return fmt.Errorf("kvindex: I7: ranks have %d routed blocks, %d are counted, too many by %d", blocks, s.blocks, over)
	}
	return nil
}
