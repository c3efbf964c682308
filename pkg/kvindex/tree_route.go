package kvindex

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// routeSlice is how many blocks Route notes before other writers get the lock.
const routeSlice = 4096

// expireSlice is how many sendings end, or how many times 64 blocks are dropped, before
// other writers get the lock.
const expireSlice = 64

// Route implements [Index].
func (t *Tree) Route(r worker.Rank, chain []LocalHash, g Guess, now time.Time) (next time.Time) {
	t.Expire(now)
	chain = chain[:min(len(chain), t.prompts.most())]
	for n := min(routeSlice, len(chain)); ; n = min(n+routeSlice, len(chain)) {
		next = t.routeSome(r, chain[:n], g, now)
		if n == len(chain) {
			return next
		}
	}
}

func (t *Tree) routeSome(r worker.Rank, chain []LocalHash, g Guess, now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prompts.tell(now)
	for len(chain) > 0 && t.budget.hopeless(len(chain)) { // the beginning of the prompt is better than nothing
		chain = chain[:len(chain)/2]
	}
	if len(chain) == 0 {
		return t.prompts.nextExpiry()
	}
	if t.eviction.pressed(len(chain)) {
		t.shedShare(len(chain))
	}
	rk := t.ranks.known(r)
	if rk == nil {
		rk = t.adopt(r)
	}
	if !t.eviction.recallFor(len(chain)) {
		return t.prompts.nextExpiry()
	}
	if rk.sent.marks == nil {
		if !t.prompts.open(rk, t.slots) {
			return t.prompts.nextExpiry()
		}
		t.eviction.recount() // with another slot, a store into a crowd may take more
	}
	t.trie.tick()
	t.prompts.note(rk, chain, g)
	return t.prompts.nextExpiry()
}

// adopt adds a rank that is not attached, for Route. When there are too many such
// ranks, it removes those with nothing left; not at once, since ranks that have nothing
// in a quiet moment would otherwise change their slots again and again.
func (t *Tree) adopt(r worker.Rank) *treeRank {
	if t.ranks.crowded() {
		for _, rk := range inOrder(t.ranks.all, func(rk *treeRank) Slot { return rk.slot }) {
			if !rk.attached && !rk.busy && rk.sent.blocks == 0 {
				t.lose(rk)
			}
		}
		t.ranks.allow()
	}
	return t.newRank(r)
}

// Expire implements [Index].
func (t *Tree) Expire(now time.Time) (next time.Time) {
	for {
		next, done := t.expireSome(now)
		if done {
			return next
		}
	}
}

func (t *Tree) expireSome(now time.Time) (next time.Time, done bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prompts.tell(now)
	done = t.prompts.expire(expireSlice)
	return t.prompts.nextExpiry(), done
}
