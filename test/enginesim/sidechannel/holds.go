package sidechannel

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// gone says why KV is no longer held.
type gone uint8

const (
	goneTaken    gone = iota + 1
	goneReleased      // freed unread: its decode was refused, or its client left
	goneExpired
)

// fate says why the KV of one id is gone, and names the decode request that caused it.
type fate struct {
	why gone
	by  string
}

// goneKept is how many ids are remembered after their KV is gone. With them a decode that
// comes too late is told from one that should not have come.
const goneKept = 20_000

// held is the KV of one answered prefill. It is kept until a decode takes it.
type held struct {
	id     string // decode asks for the KV by this id
	rank   int
	seq    uint64 // of the prefill request
	digest uint64
	fields map[string]string // the hand-off as it was answered: JSON text by name
	free   func()            // gives the blocks back; called once, without the lock
	blocks int

	timer *time.Timer // guarded by holds.mu
}

// holds has the held KV of one prefill worker. Safe for concurrent use. mu is held for
// map operations only.
type holds struct {
	lease time.Duration

	mu     sync.Mutex // guards the fields below
	live   map[string]*held
	past   map[string]fate
	order  []string                 // ids of past, oldest first
	coming map[string]chan struct{} // closed when KV is held under the id
	state  core.HandoffState
	closed bool
}

func newHolds(lease time.Duration) *holds {
	return &holds{lease: lease, live: make(map[string]*held), past: make(map[string]fate), coming: make(map[string]chan struct{})}
}

// put begins the lease. After close it frees the KV at once.
func (l *holds) put(h *held) {
	l.mu.Lock()
	l.state.Given++
	if l.closed {
		l.mu.Unlock()
		h.free()
		return
	}
	if l.past[h.id].why == goneReleased { // the decode left before the KV was here
		l.state.Released++
		l.mu.Unlock()
		h.free()
		return
	}
	l.live[h.id] = h
	if c := l.coming[h.id]; c != nil {
		close(c)
		delete(l.coming, h.id)
	}
	h.timer = time.AfterFunc(l.lease, func() { l.end(h.id, goneExpired, "") })
	l.mu.Unlock()
}

// await waits until KV is or was held under an id, or ctx ends.
func (l *holds) await(ctx context.Context, id string) {
	l.mu.Lock()
	_, gone := l.past[id]
	if l.live[id] != nil || gone {
		l.mu.Unlock()
		return
	}
	c := l.coming[id]
	if c == nil {
		c = make(chan struct{})
		l.coming[id] = c
	}
	l.mu.Unlock()
	select {
	case <-c:
	case <-ctx.Done():
	}
}

// release frees KV unread, as a decode asks. If the KV is not here yet, it will be freed
// when it comes.
func (l *holds) release(id, by string) {
	if l.end(id, goneReleased, by) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.past[id]; !known {
		l.remember(id, fate{goneReleased, by})
	}
}

// remember records the fate of an id. The caller holds mu.
func (l *holds) remember(id string, f fate) {
	l.past[id] = f
	l.order = append(l.order, id)
	if len(l.order) > goneKept {
		delete(l.past, l.order[0])
		l.order = l.order[1:]
	}
}

// refusal is why KV is not handed to a decode.
type refusal struct {
	Kind      string `json:"kind"`
	Msg       string `json:"error"`
	Violation bool   `json:"violation"` // a rule was broken; false: this may happen without a fault
}

// take gives the KV to a decode and frees it here. It returns nil, or the reason for
// keeping the KV. A rank of -1 means any rank. The argument by identifies the decode
// request; match compares that request with the held KV.
func (l *holds) take(id string, rank int, by string, match func(*held) *refusal) *refusal {
	l.mu.Lock()
	h := l.live[id]
	if h == nil || rank >= 0 && h.rank != rank {
		defer l.mu.Unlock()
		return l.missingLocked(id, by)
	}
	l.mu.Unlock()
	// The fields of h do not change, so match may read them without the lock.
	if no := match(h); no != nil {
		return no
	}
	if !l.end(id, goneTaken, by) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.missingLocked(id, by)
	}
	return nil
}

// missingLocked returns why id is not held. No rule is broken if the request that asks
// has itself taken or released the KV before, as when its client leaves while it asks.
func (l *holds) missingLocked(id, by string) *refusal {
	past := l.past[id]
	broken := past.by != by
	switch past.why {
	case goneExpired:
		l.state.Late++
		return &refusal{Kind: "expired", Msg: fmt.Sprintf("the lease on the KV of %q has run out", id)}
	case goneTaken:
		return &refusal{Kind: "taken_twice", Msg: fmt.Sprintf("the KV of %q has been taken already", id), Violation: broken}
	case goneReleased:
		return &refusal{Kind: "released", Msg: fmt.Sprintf("the KV of %q was freed on word of a decode worker", id), Violation: broken}
	default:
		return &refusal{Kind: "unknown_handoff", Msg: fmt.Sprintf("no KV is held under %q", id), Violation: true}
	}
}

// end removes an id and frees its blocks. False means that the id was not held any more.
func (l *holds) end(id string, why gone, by string) bool {
	l.mu.Lock()
	h := l.live[id]
	if h == nil {
		l.mu.Unlock()
		return false
	}
	delete(l.live, id)
	h.timer.Stop()
	switch why {
	case goneTaken:
		l.state.Taken++
	case goneReleased:
		l.state.Released++
	case goneExpired:
		l.state.Expired++
	}
	l.remember(id, fate{why, by})
	l.mu.Unlock()
	h.free()
	return true
}

func (l *holds) counts() core.HandoffState {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.state
	st.Held = len(l.live)
	for _, h := range l.live {
		st.HeldBlocks += h.blocks
	}
	return st
}

// reset sets the counts to zero. KV that is held stays, and counts as given.
func (l *holds) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = core.HandoffState{Given: uint64(len(l.live))}
}

// close stops every lease and frees everything, as the end of a process does.
func (l *holds) close() {
	l.mu.Lock()
	l.closed = true
	live := l.live
	l.live = make(map[string]*held)
	for _, h := range live {
		h.timer.Stop()
	}
	l.mu.Unlock()
	for _, h := range live {
		h.free()
	}
}
