package core

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// Rank is one data-parallel rank: its cache, its running requests, and those that wait.
type Rank struct {
	// set at construction, read-only
	ID         int
	maxRunning int
	pub        *publisher // nil: no events

	// mu guards the fields below. Only the publisher's lock is taken under it, so that
	// batches leave in the order in which the cache changed.
	mu        sync.Mutex
	cache     *cache
	running   int
	holds     map[*hold]bool
	waiting   list.List // of *admission, first in first out
	busy      time.Time // when the device has computed all admitted prompts
	computing int       // prompts that are computed, or wait for the device
	computed  time.Time // when the last one ended

	promptTokens, cachedTokens, outputTokens uint64
}

// admission is a request that waits for a rank.
type admission struct {
	sums []blockSum
	need int
	hold *hold
	done chan struct{} // closed under mu once hold is set
}

// hold has the blocks and the slot of an admitted request. The request's goroutine owns
// it; its methods take the rank's lock.
type hold struct {
	r       *Rank
	path    []*block
	private int
	slot    bool // counts as running
	Cached  int  // blocks found at admission
	over    bool
	space   Namespace // of the blocks that it stores; set by the caller of admit
	grown   grown
}

// admit waits, first in first out, until a running slot and need blocks are free, and
// returns them as a hold. Its error is always the context's.
func (r *Rank) admit(ctx context.Context, sums []blockSum, need int) (*hold, error) {
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

func (r *Rank) tryAdmitLocked(a *admission) bool {
	if r.running >= r.maxRunning {
		return false
	}
	c := r.cache
	path := c.match(a.sums, make([]*block, 0, len(a.sums)))
	if c.held()+c.extra(path, a.need) > c.capacity {
		return false
	}
	h := &hold{r: r, path: path, private: a.need - len(path), slot: true, Cached: len(path)}
	c.reserve(path, h.private)
	r.running++
	if r.holds == nil {
		r.holds = make(map[*hold]bool)
	}
	r.holds[h] = true
	a.hold = h
	return true
}

func (r *Rank) wakeLocked() {
	for e := r.waiting.Front(); e != nil; e = r.waiting.Front() {
		a := e.Value.(*admission)
		if !r.tryAdmitLocked(a) {
			break
		}
		r.waiting.Remove(e)
		close(a.done)
	}
}

func (r *Rank) flushLocked() {
	if len(r.cache.events) > 0 {
		r.pub.publish(r.cache.events)
		r.cache.events = r.cache.events[:0]
	}
}

func (r *Rank) releaseLocked(h *hold) {
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

// Blocks is how many blocks the request holds.
func (h *hold) Blocks() int { return len(h.path) + h.private }

// Store puts the full pages of tokens into the cache, where they stay pinned, and
// publishes the changes.
func (h *hold) Store(sums []blockSum, tokens []uint32) {
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

// flush publishes the changes in the cache. Evictions are published together with the
// stores that caused them, as by engines, which publish once in each step.
func (r *Rank) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flushLocked()
}

// LeaveSlot frees the running slot for the next request. The blocks stay held.
func (h *hold) LeaveSlot() {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if h.slot {
		h.slot = false
		h.r.running--
		h.r.wakeLocked()
	}
}

// Release gives everything back. It may be called several times.
func (h *hold) Release() {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	h.r.releaseLocked(h)
	h.r.flushLocked()
	h.r.wakeLocked()
}

// compute waits while a prompt is computed.
func (r *Rank) compute(ctx context.Context, d time.Duration) error {
	r.mu.Lock()
	r.computing++
	r.mu.Unlock()
	err := Pause(ctx, d)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.computing--
	r.computed = time.Now()
	return err
}

// Heard reports whether the rank has sent a token since then, or would send one now.
func (r *Rank) Heard(since time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.computing == 0 || r.computed.After(since)
}

// computeFor returns how long the caller must wait for work that keeps the device busy
// for d. With serial the work waits behind earlier work.
func (r *Rank) computeFor(d time.Duration, serial bool) time.Duration {
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

func (r *Rank) account(prompt, cached, output int) {
	r.mu.Lock()
	r.promptTokens += uint64(prompt)
	r.cachedTokens += uint64(cached)
	r.outputTokens += uint64(output)
	r.mu.Unlock()
}

// Sleep empties the cache. The change is published with the next ones. False means that
// blocks are held; then nothing happens.
func (r *Rank) Sleep() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cache.held() > 0 {
		return false
	}
	r.cache.clear()
	return true
}

// clear empties the cache. False means that blocks are held; then nothing happens.
func (r *Rank) clear() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cache.held() > 0 {
		return false
	}
	r.cache.clear()
	r.flushLocked()
	return true
}

// Subscribed reports whether somebody has subscribed to the rank's events.
func (r *Rank) Subscribed() bool { return r.pub.subscribed() }
