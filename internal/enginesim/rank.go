package enginesim

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// rank is one data-parallel rank: its cache, its running requests and the
// queue before them.
type rank struct {
	// set at construction, read-only
	id         int
	maxRunning int
	pub        *publisher // nil: no events

	// mu guards everything below. The publisher's lock is taken under it, so
	// that batches leave in the order in which the cache changed; nothing
	// else is.
	mu          sync.Mutex
	cache       *cache
	running     int
	holds       map[*hold]bool
	waiting     list.List // of *admission, first in first out
	nextBlockID int       // see blockIDs
	busy        time.Time // when the device has computed all prompts admitted so far

	promptTokens, cachedTokens, outputTokens uint64
}

// admission is a request before a rank's door.
type admission struct {
	sums []blockSum
	need int
	hold *hold
	done chan struct{} // closed under mu once hold is set
}

// hold is what an admitted request keeps of its rank. Owned by the request's
// goroutine, except that its methods take the rank's lock.
type hold struct {
	r       *rank
	path    []*block
	private int
	slot    bool // counts as running
	cached  int  // blocks found at admission
	over    bool
	space   namespace // of the blocks that it stores; set by who is admitted
	grown   grown
}

// admit waits, first in first out, until a running slot is free and need
// blocks can be had, and returns them. It fails only with the context's error.
func (r *rank) admit(ctx context.Context, sums []blockSum, need int) (*hold, error) {
	a := &admission{sums: sums, need: max(need, len(sums)), done: make(chan struct{})}
	r.mu.Lock()
	if r.waiting.Len() == 0 && r.tryAdmitLocked(a) {
		r.mu.Unlock()
		return a.hold, nil
	}
	at := r.waiting.PushBack(a)
	r.mu.Unlock()
	select {
	case <-a.done:
		return a.hold, nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.hold != nil {
		r.releaseLocked(a.hold)
		r.flushLocked()
	} else {
		r.waiting.Remove(at)
	}
	r.wakeLocked()
	return nil, ctx.Err()
}

func (r *rank) tryAdmitLocked(a *admission) bool {
	if r.running >= r.maxRunning {
		return false
	}
	c := r.cache
	path := c.match(a.sums, make([]*block, 0, len(a.sums)))
	if c.held()+c.extra(path, a.need) > c.capacity {
		return false
	}
	h := &hold{r: r, path: path, private: a.need - len(path), slot: true, cached: len(path)}
	c.reserve(path, h.private)
	r.running++
	if r.holds == nil {
		r.holds = make(map[*hold]bool)
	}
	r.holds[h] = true
	a.hold = h
	return true
}

func (r *rank) wakeLocked() {
	for e := r.waiting.Front(); e != nil; e = r.waiting.Front() {
		a := e.Value.(*admission)
		if !r.tryAdmitLocked(a) {
			break
		}
		r.waiting.Remove(e)
		close(a.done)
	}
}

func (r *rank) flushLocked() {
	if len(r.cache.events) > 0 {
		r.pub.publish(r.cache.events)
		r.cache.events = r.cache.events[:0]
	}
}

func (r *rank) releaseLocked(h *hold) {
	if h.over {
		return
	}
	h.over = true
	delete(r.holds, h)
	r.cache.release(h.path, h.private)
	h.path, h.private = nil, 0
	if h.slot {
		h.slot = false
		r.running--
	}
}

// store puts the full pages of tokens into the cache, where they stay pinned, and tells of
// them.
func (h *hold) store(sums []blockSum, tokens []uint32) {
	h.storeUntold(sums, tokens)
	h.r.flush()
}

func (h *hold) storeUntold(sums []blockSum, tokens []uint32) {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if h.over {
		return
	}
	before := len(h.path)
	h.path = h.r.cache.insert(h.path, sums, tokens, h.space)
	h.private -= len(h.path) - before
}

// flush tells of what has changed in the cache. What a request has evicted is told with
// what it stores, as engines do, which tell once a step.
func (r *rank) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flushLocked()
}

// leaveSlot lets the next request run while the blocks stay held.
func (h *hold) leaveSlot() {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if h.slot {
		h.slot = false
		h.r.running--
		h.r.wakeLocked()
	}
}

// release gives everything back. It may be called more than once.
func (h *hold) release() {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	h.r.releaseLocked(h)
	h.r.flushLocked()
	h.r.wakeLocked()
}

// computeFor returns how long the caller has to wait for work that keeps the
// device busy for d.
func (r *rank) computeFor(d time.Duration, serial bool) time.Duration {
	if !serial {
		return d
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.busy.Before(now) {
		r.busy = now
	}
	r.busy = r.busy.Add(d)
	return r.busy.Sub(now)
}

func (r *rank) account(prompt, cached, output int) {
	r.mu.Lock()
	r.promptTokens += uint64(prompt)
	r.cachedTokens += uint64(cached)
	r.outputTokens += uint64(output)
	r.mu.Unlock()
}

// sleep empties the cache, and tells of it with what happens next only.
func (r *rank) sleep() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cache.held() > 0 {
		return false
	}
	r.cache.clear()
	return true
}

// clear empties the cache; it reports false while blocks are held.
func (r *rank) clear() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cache.held() > 0 {
		return false
	}
	r.cache.clear()
	r.flushLocked()
	return true
}
