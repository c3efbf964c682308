package extproc

import "sync"

// tasks are goroutines that the server's end waits for. Unlike a WaitGroup's they
// may be started by others of their kind while it waits, and none starts after
// it. Safe for concurrent use; the zero value is open.
type tasks struct {
	wg sync.WaitGroup

	mu     sync.Mutex
	closed bool // guarded by mu
}

// run runs f, or reports false: it is too late for it.
func (t *tasks) run(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Go(f)
	return true
}

// close lets nothing new begin and waits for what runs.
func (t *tasks) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.wg.Wait()
}
