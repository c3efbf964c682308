package extproc

import "sync"

// actor takes one event at a time: whoever posts to an idle actor handles the
// event, and those that come meanwhile, in order. So a stream costs no
// goroutine and no channel of its own, and its handler needs no lock.
//
// post never waits for the handler when another goroutine is in it. It must
// not be called while holding a lock that a handler takes.
type actor struct {
	mu    sync.Mutex
	inbox []event // guarded by mu
	busy  bool    // guarded by mu: someone is in handle
}

func (a *actor) post(ev event, handle func(*event)) {
	a.mu.Lock()
	a.inbox = append(a.inbox, ev)
	if a.busy {
		a.mu.Unlock()
		return
	}
	a.busy = true
	for len(a.inbox) > 0 {
		next := a.inbox[0]
		a.inbox[0] = event{}
		a.inbox = a.inbox[1:]
		a.mu.Unlock()
		handle(&next)
		a.mu.Lock()
	}
	a.inbox = nil
	a.busy = false
	a.mu.Unlock()
}
