package kvindex

import "github.com/seed-60ae5743/baton/pkg/worker"

// seeSlice is how many of a rank's segments are entered into a new view before other
// writers get the lock.
const seeSlice = 32

// Store implements [Index].
func (t *Tree) Store(r worker.Rank, e Stored) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	rk := t.ranks.idle(r)
	if rk == nil {
		return ErrUnknownRank
	}
	if len(e.Blocks) == 0 && !e.HasParent {
		return nil
	}
	if rk.slot >= maxSlots {
		return ErrNoRoom
	}
	t.trie.tick()
	parent, err := t.ledger.parentOf(rk, e)
	if err != nil {
		return err
	}
	if len(e.Blocks) > 0 && rk.lacks(e.Tier) {
		if _, err := t.ledger.plan(rk, parent, e); err != nil {
			return err
		}
		rk, parent, err = t.see(rk, parent, e)
		if err != nil {
			return err
		}
	}
	if t.eviction.pressed(len(e.Blocks)) {
		rk, parent, err = t.relieve(rk, parent, e)
		if err != nil {
			return err
		}
	}
	if len(e.Blocks) == 1 && parent != 0 && t.ledger.appendOne(rk, parent, e) {
		return nil
	}
	return t.ledger.store(rk, parent, e)
}

// relieve makes room for the event. It does the event's share of shedding, in steps,
// and more steps while there is no room. It does not shed the blocks that the event
// continues from. It gives mu up between steps, and returns the rank and the parent as
// they are afterwards.
func (t *Tree) relieve(rk *treeRank, parent blockID, e Stored) (*treeRank, blockID, error) {
	n, r := len(e.Blocks), rk.rank
	if t.budget.hopeless(n) {
		return rk, 0, ErrNoRoom
	}
	t.eviction.relief()
	for i := 1; ; i++ {
		t.eviction.protect(parent)
		if !t.eviction.due(n, i) || !t.eviction.step() {
			break
		}
		if i%stepsAHold != 0 {
			continue
		}
		var err error
		rk, parent, err = t.again(r, e)
		if err != nil {
			return rk, 0, err
		}
	}
	if !t.eviction.recallFor(n) {
		return rk, 0, ErrNoRoom
	}
	return rk, parent, nil
}

// again gives mu up in the middle of an event, and returns the rank and the parent as
// they are afterwards.
func (t *Tree) again(r worker.Rank, e Stored) (*treeRank, blockID, error) {
	t.giveUp()
	rk := t.ranks.idle(r)
	if rk == nil {
		return nil, 0, ErrUnknownRank
	}
	t.trie.tick()
	parent, err := t.ledger.parentOf(rk, e)
	return rk, parent, err
}

// shedShare is relieve for calls that store no event.
func (t *Tree) shedShare(n int) {
	t.eviction.relief()
	for i := 1; t.eviction.due(n, i) && t.eviction.step(); i++ {
		if i%stepsAHold == 0 {
			t.giveUp()
		}
	}
}

// see adds the view that blocks on the event's tier need, and fills it in slices. It
// returns the rank and the parent as they are afterwards. On an error the view stays
// partly filled, and the rank's next event continues: until the view is filled, nothing
// is stored for the rank.
func (t *Tree) see(rk *treeRank, parent blockID, e Stored) (*treeRank, blockID, error) {
	r, one := rk.rank, e
	one.Blocks = e.Blocks[:1]
	for i := 1; rk.lacks(e.Tier); i++ {
		w := &rk.views[len(rk.views)-1]
		if !w.making {
			w = t.ledger.addView(rk, e.Tier, t.slots)
			if w == nil {
				break
			}
			t.eviction.recount() // with another slot, a store into a crowd may take more
		}
		full, err := w.making && t.ledger.enterSome(rk, w, &t.budget), error(nil)
		switch {
		case full:
			rk, parent, err = t.relieve(rk, parent, one)
		case i%seeSlice == 0:
			rk, parent, err = t.again(r, e)
		}
		if err != nil {
			return rk, 0, err
		}
	}
	return rk, parent, nil
}
