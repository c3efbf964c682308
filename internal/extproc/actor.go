package extproc

import "sync"

// actor takes one event at a time: whoever posts to an idle actor handles the
// event, and those that come meanwhile, in order. So a stream costs no
// goroutine and no channel of its own, and its handler needs no lock.
//
// post never waits for the handler when another goroutine is in it. It must
// not be called while holding a lock that a handler takes.
type actor struct {
	handle func(*notice) // set at construction

	mu    sync.Mutex
	inbox []*notice // guarded by mu; what came while busy
	busy  bool      // guarded by mu: someone is in handle
}

func (a *actor) post(ev *notice) {
	a.mu.Lock()
	if a.busy {
		a.inbox = append(a.inbox, ev)
		a.mu.Unlock()
		return
	}
	a.busy = true
	for {
		a.mu.Unlock()
		a.handle(ev)
		a.mu.Lock()
		if len(a.inbox) == 0 {
			break
		}
		ev = a.inbox[0]
		a.inbox[0] = nil
		a.inbox = a.inbox[1:]
	}
	a.inbox = nil
	a.busy = false
	a.mu.Unlock()
}
