package extproc

import "sync"

// actor handles one event at a time. The goroutine that posts to an idle actor handles
// that event, and then, in order, the events that others have posted meanwhile. So a stream
// costs no goroutine and no channel of its own, and its handler needs no lock.
//
// post does not wait if another goroutine is in the handler. The caller must not hold a
// lock that a handler takes.
type actor struct {
	handle func(*notice) // set at construction

	mu    sync.Mutex
	inbox []*notice // guarded by mu: events posted while busy
	busy  bool      // guarded by mu: a goroutine is in handle
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
