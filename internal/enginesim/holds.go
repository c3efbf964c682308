package enginesim

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// gone is what became of KV that is no longer held.
type gone uint8

const (
	goneTaken    gone = iota + 1
	goneReleased      // freed without being read: its decode was refused, or left
	goneExpired
)

// fate is what became of one id, and by which request of a decode worker.
type fate struct {
	why gone
	by  string
}

// goneKept is how many ids are remembered after their KV has gone, so that a
// decode that comes too late can be told from one that never should have come.
const goneKept = 20_000

// held is the KV of one answered prefill, kept until a decode takes it.
type held struct {
	id     string // by which decode asks for it
	rank   int
	seq    uint64 // of the prefill request
	digest uint64
	fields map[string]string // the hand-off as it was answered: name to JSON text
	free   func()            // gives the blocks back; called once, without the lock
	blocks int

	timer *time.Timer // guarded by holds.mu
}

// HandoffState is the ledger of hand-offs over a side channel, the prefill's
// half and the decode's. In a balanced fleet, where nobody is running,
// Held is zero everywhere and the sum of Given is that of Taken, Released and
// Expired.
type HandoffState struct {
	// A prefill worker's.
	Held       int    `json:"held"` // requests whose KV waits to be taken
	HeldBlocks int    `json:"held_blocks"`
	Given      uint64 `json:"given"`    // hand-offs ever made
	Taken      uint64 `json:"taken"`    // by a decode
	Released   uint64 `json:"released"` // freed unread, on word of the decode worker
	Expired    uint64 `json:"expired"`  // nobody came within the lease

	// A decode worker's.
	Pulled       uint64 `json:"pulled"`
	PulledBlocks uint64 `json:"pulled_blocks"` // whole blocks of prompts that it did not have, and so pulled
	PullsFailed  uint64 `json:"pulls_failed"`
	Recomputed   uint64 `json:"recomputed"` // of those: prompts computed here after all
	Local        uint64 `json:"local"`      // requests without a hand-off, served whole
}

// holds is the ledger of one prefill worker. Safe for concurrent use; mu is
// held for map operations alone.
type holds struct {
	lease time.Duration

	mu     sync.Mutex
	live   map[string]*held
	past   map[string]fate
	order  []string                 // ids of past, oldest first
	coming map[string]chan struct{} // closed when the id is put
	state  HandoffState
	closed bool
}

func newHolds(lease time.Duration) *holds {
	return &holds{lease: lease, live: make(map[string]*held), past: make(map[string]fate), coming: make(map[string]chan struct{})}
}

// put begins the lease. After close it frees at once.
func (l *holds) put(h *held) {
	l.mu.Lock()
	l.state.Given++
	if l.closed {
		l.mu.Unlock()
		h.free()
		return
	}
	if l.past[h.id].why == goneReleased { // its decode has left before it
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

// await waits until KV is held, or has been, under an id.
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

// release frees KV unread, on word of a decode; what is not there yet will be.
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

// remember keeps what became of an id. The caller holds mu.
func (l *holds) remember(id string, f fate) {
	l.past[id] = f
	if l.order = append(l.order, id); len(l.order) > goneKept {
		delete(l.past, l.order[0])
		l.order = l.order[1:]
	}
}

// refusal is why KV is not handed to a decode.
type refusal struct {
	Kind      string `json:"kind"`
	Msg       string `json:"error"`
	Violation bool   `json:"violation"` // somebody broke a rule; else it is life
}

// take gives the KV to a decode, frees it here and returns nil; or says why
// not, and holds on to what it has. rank -1 takes from any rank, by names the
// decode request, match compares it with what is held.
func (l *holds) take(id string, rank int, by string, match func(*held) *refusal) *refusal {
	l.mu.Lock()
	h := l.live[id]
	if h == nil || rank >= 0 && h.rank != rank {
		defer l.mu.Unlock()
		return l.missingLocked(id, by)
	}
	l.mu.Unlock()
	// What is held never changes, so it may be compared without the lock.
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

// missingLocked says why id is not there. A request that overtook itself, as
// when its client leaves while it asks, has broken no rule.
func (l *holds) missingLocked(id, by string) *refusal {
	past := l.past[id]
	broken := past.by != by
	switch past.why {
	case goneExpired:
		return &refusal{Kind: "expired", Msg: fmt.Sprintf("the lease on the KV of %q has run out", id)}
	case goneTaken:
		return &refusal{Kind: "taken_twice", Msg: fmt.Sprintf("the KV of %q has been taken already", id), Violation: broken}
	case goneReleased:
		return &refusal{Kind: "released", Msg: fmt.Sprintf("the KV of %q was freed on word of a decode worker", id), Violation: broken}
	default:
		return &refusal{Kind: "unknown_handoff", Msg: fmt.Sprintf("no KV is held under %q", id), Violation: true}
	}
}

// end takes id out of the ledger and frees its blocks. It reports false when
// somebody else was first.
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

func (l *holds) counts() HandoffState {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.state
	st.Held = len(l.live)
	for _, h := range l.live {
		st.HeldBlocks += h.blocks
	}
	return st
}

// reset forgets counts; what is held stays, and counts as given again.
func (l *holds) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = HandoffState{Given: uint64(len(l.live))}
}

// close stops every lease and frees everything, as the end of the process does.
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
