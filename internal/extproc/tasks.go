package extproc

import "sync"

// tasks are goroutines that the server's end waits for. Unlike a WaitGroup's they
// may be started by others of their kind while it waits, and none starts after
// it. Safe for concurrent use; the zero value is open.
type tasks struct {
	wg sync.WaitGroup

	mu      sync.Mutex
	running int  // guarded by mu
	closed  bool // guarded by mu
}

// run runs f, or reports false: it is too late for it.
func (t *tasks) run(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.running++
	t.wg.Go(func() {
		defer t.done()
		f()
	})
	return true
}

func (t *tasks) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
}

// idle reports whether nothing runs.
func (t *tasks) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running == 0
}

// close lets nothing new begin and waits for what runs.
func (t *tasks) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.wg.Wait()
}
