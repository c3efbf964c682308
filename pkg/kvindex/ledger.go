package kvindex

import (
	"maps"
	"sync/atomic"
)

// ledger notes what events say: which block each engine hash of a rank names, on which
// tiers, and in which of the rank's views the block counts. It owns the tables of names,
// and of a treeRank the fields names, views, gone, lastName and lastBlock, and the counts.
type ledger struct {
	trie    *trie
	prompts *prompts
	names   nameStore

	removals atomic.Uint64 // blocks that events took off Device, and clears; written under mu

	// Scratch.
	planned []blockID
	seen    []EngineHash
	gain    [numViews]Slot
	touched uint32 // sum of words that were read ahead; keeps the compiler from leaving out the reads
}

// resolve returns the block with the rank's engine hash h, or 0 if there is none.
func (l *ledger) resolve(rk *treeRank, h EngineHash) blockID {
	if rk.lastBlock != 0 && rk.lastName == h {
		return rk.lastBlock
	}
	if p := l.names.find(&rk.names, h); p.b != nil {
		return p.val().block()
	}
	return 0
}

// parentOf returns the block after which the event's blocks come, or 0 if it is the
// root.
func (l *ledger) parentOf(rk *treeRank, e Stored) (blockID, error) {
	if !e.HasParent {
		return 0, nil
	}
	if b := l.resolve(rk, e.Parent); b != 0 {
		return b, nil
	}
	rk.stats.UnknownParents++
	return 0, ErrUnknownParent
}

// appendOne stores the event if it is of the most frequent kind: one block on Device,
// after the last block of a node without children, all of which the rank holds.
// Otherwise it changes nothing and returns false.
func (l *ledger) appendOne(rk *treeRank, parent blockID, e Stored) bool {
	if e.Tier != Device || len(rk.views) > 1 {
		return false
	}
	id, may := l.trie.mayPush(parent, rk.slot)
	if !may {
		return false
	}
	v, found := l.names.put(&rk.names, e.Blocks[0].Engine)
	if found { // the name is known already, or is the parent's
		return false
	}
	b := l.trie.push(id, rk.slot, e.Blocks[0].Local)
	*v = nameOf(b, 1<<Device)
	rk.lastName, rk.lastBlock = e.Blocks[0].Engine, b
	rk.stats.Blocks++
	rk.stats.TierBlocks[Device]++
	rk.stats.Stored++
	return true
}

// store stores the blocks of an event, after its parent. On an error of plan it changes
// nothing.
func (l *ledger) store(rk *treeRank, parent blockID, e Stored) error {
	known, err := l.plan(rk, parent, e)
	if err != nil {
		return err
	}
	for i, b := range e.Blocks[:known] {
		l.keep(rk, b.Engine, l.planned[i], e.Tier)
		parent = l.planned[i]
	}
	gain := l.gains(rk, e.Tier)
	for rest := e.Blocks[known:]; len(rest) > 0; {
		first, k := l.trie.extend(gain, parent, rest)
		parent = l.enter(rk, first, rest[:k], e.Tier)
		rest = rest[k:]
	}
	return nil
}

// enter enters the names of new blocks, of which at is the first, and returns the last.
func (l *ledger) enter(rk *treeRank, at blockID, blocks []Block, tier Tier) blockID {
	for i, b := range blocks {
		v, _ := l.names.put(&rk.names, b.Engine)
		*v = nameOf(at+blockID(i), 1<<tier)
	}
	k := len(blocks)
	rk.lastName, rk.lastBlock = blocks[k-1].Engine, at+blockID(k-1)
	rk.stats.Blocks += k
	rk.stats.TierBlocks[tier] += k
	rk.stats.Stored += uint64(k)
	return rk.lastBlock
}

// plan collects into l.planned the leading blocks of the event that are in the tree
// already, whoever holds them. It returns ErrConflict if an engine hash of the event
// already names another block of the rank, or occurs twice in the event.
func (l *ledger) plan(rk *treeRank, parent blockID, e Stored) (known int, err error) {
	l.planned = l.planned[:0]
	at, on := parent, true
	for i, b := range e.Blocks {
		if i%ahead == 0 && len(e.Blocks) > 1 && rk.names.n > 0 {
			for _, x := range e.Blocks[i:min(i+ahead, len(e.Blocks))] {
				l.touched += l.names.touch(&rk.names, x.Engine)
			}
		}
		if on {
			at = l.trie.follow(at, b.Local)
			if at != 0 {
				l.planned = append(l.planned, at)
			} else {
				on = false
			}
		}
		if p := l.names.find(&rk.names, b.Engine); p.b != nil && (!on || p.val().block() != at) {
			rk.stats.Conflicts++
			return 0, ErrConflict
		}
	}
	if !l.distinct(e) {
		rk.stats.Conflicts++
		return 0, ErrConflict
	}
	return len(l.planned), nil
}

// distinct reports whether the engine hashes of the event, the parent's included, all
// differ.
func (l *ledger) distinct(e Stored) bool {
	if len(e.Blocks) == 1 {
		return !e.HasParent || e.Parent != e.Blocks[0].Engine
	}
	size := 16
	for size < 2*(len(e.Blocks)+1) {
		size *= 2
	}
	if cap(l.seen) < size {
		l.seen = make([]EngineHash, size)
	}
	l.seen = l.seen[:size]
	clear(l.seen)
	zero := false // 0 marks a free place in seen, so a hash of 0 is noted here
	add := func(h EngineHash) bool {
		if h == 0 {
			was := zero
			zero = true
			return !was
		}
		for i := l.names.mix(h); ; i++ {
			switch at := &l.seen[i%uint64(size)]; *at {
			case 0:
				*at = h
				return true
			case h:
				return false
			}
		}
	}
	if e.HasParent {
		add(e.Parent)
	}
	for _, b := range e.Blocks {
		if !add(b.Engine) {
			return false
		}
	}
	return true
}

// keep notes that the rank has the block b of the tree, under the name h, on the tier.
func (l *ledger) keep(rk *treeRank, h EngineHash, b blockID, tier Tier) {
	tr := l.trie
	rk.lastName, rk.lastBlock = h, b
	tr.renew(tr.blocks.node(b))
	v, found := l.names.put(&rk.names, h)
	had := uint8(0)
	if found {
		had = v.tiers()
		if had&(1<<tier) != 0 {
			rk.stats.Duplicates++
			return
		}
		*v |= 1 << tier
	} else {
		*v = nameOf(b, 1<<tier)
		tr.blocks.ref(b)
		rk.stats.Blocks++
	}
	rk.stats.TierBlocks[tier]++
	rk.stats.Stored++
	for i := range rk.views {
		if w := &rk.views[i]; w.view.counts(tier) && had&tiersOf[w.view] == 0 {
			l.hold(w, b)
		}
	}
}

// hold counts one more name of block b in the view.
func (l *ledger) hold(w *treeView, b blockID) {
	tr := l.trie
	id := tr.blocks.node(b)
	n := &tr.nodes[id]
	pos, cut := uint32(b-n.start()), tr.holders.cut(n, w.slot)
	switch {
	case pos < cut:
		if w.extra == nil {
			w.extra = make(map[blockID]uint32)
		}
		w.extra[b]++
		return
	case pos > cut: // the rank does not hold the block before it: let a node begin here
		tr.split(id, pos)
		pos = 0
	}
	tr.holders.set(n, w.slot, pos+1)
}

// addView adds a view with nothing entered so far. It returns nil if there is no slot
// for the view.
func (l *ledger) addView(rk *treeRank, tier Tier, slots *Slots) *treeView {
	view := viewOf(tier)
	slot := slots.needView(rk.slot, view)
	if slot >= maxSlots {
		return nil
	}
	w := treeView{view: view, slot: slot, making: view.widens()}
	if w.making {
		w.extra = maps.Clone(rk.narrower(view).extra)
	}
	rk.views = append(rk.views, w)
	return &rk.views[len(rk.views)-1]
}

// enterSome enters the blocks of one segment's names into a view that is being filled.
// It reports whether there is no room for more. Since the rank has no block on the new
// tier yet, the view holds what the next narrower view holds; so whole nodes are
// entered at once.
func (l *ledger) enterSome(rk *treeRank, w *treeView, b *budget) (full bool) {
	if len(rk.names.dir) == 0 {
		w.making = false
		return false
	}
	from := rk.narrower(w.view)
	id, next := l.names.segmentAt(&rk.names, w.next)
	for i, seg := 0, l.names.segment(id); i < len(seg); i++ {
		for _, v := range seg[i].val {
			if v == 0 {
				continue
			}
			n := &l.trie.nodes[l.trie.blocks.node(v.block())]
			if cut := l.trie.holders.cut(n, from.slot); cut > 0 && l.trie.holders.cut(n, w.slot) == 0 {
				if b.short(1) {
					return true
				}
				l.trie.holders.set(n, w.slot, cut)
			}
		}
	}
	w.next, w.making = next, next != 0
	return false
}

// gains returns the slots of the rank's views in which blocks on the tier count. They
// are valid until the next call.
func (l *ledger) gains(rk *treeRank, tier Tier) []Slot {
	out := l.gain[:0]
	for _, w := range rk.views {
		if w.view.counts(tier) {
			out = append(out, w.slot)
		}
	}
	return out
}
