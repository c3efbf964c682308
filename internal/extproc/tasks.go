package extproc

import "sync"

// tasks are goroutines whose end close waits for. Unlike the Go method of a
// [sync.WaitGroup], run may be called while close waits, also by a task: it then starts
// nothing. Safe for concurrent use; the zero value is ready.
type tasks struct {
	wg sync.WaitGroup

	mu     sync.Mutex
	closed bool // guarded by mu
}

// run starts f in a goroutine. It returns false, and starts nothing, once close was called.
func (t *tasks) run(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Go(f)
	return true
}

// close lets no further task start, and waits for those that run.
func (t *tasks) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.wg.Wait()
}
