package extproc

import "sync"

// tasks are goroutines whose end close waits for. Unlike the Go method of a
// [sync.WaitGroup], run may be called while close waits, also by a task: it then starts
// nothing. A few goroutines that have ended their task are kept for later ones, with the
// stacks that they have grown: a decision needs some 16 KiB, and growing to that is a tenth of
// its cost. Safe for concurrent use; the zero value is ready.
type tasks struct {
	wg sync.WaitGroup

	mu     sync.Mutex
	closed bool          // guarded by mu
	idle   []chan func() // guarded by mu: of the goroutines that are kept, the latest one last
}

// mostIdle is how many goroutines are kept.
const mostIdle = 16

// run starts f in a goroutine. It returns false, and starts nothing, once close was called.
func (t *tasks) run(f func()) bool { return t.start(f, true) }

// runOnce is run for a task that comes seldom: its goroutine is not kept.
func (t *tasks) runOnce(f func()) bool { return t.start(f, false) }

func (t *tasks) start(f func(), keep bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.idle)
	switch {
	case t.closed:
		return false
	case !keep:
		t.wg.Go(f)
		return true
	}
	t.wg.Add(1)
	if n == 0 {
		go t.work(f)
		return true
	}
	next := t.idle[n-1]
	t.idle = t.idle[:n-1]
	next <- f
	return true
}

// work runs tasks until it is not needed any more.
func (t *tasks) work(f func()) {
	next := make(chan func(), 1)
	for f != nil {
		f()
		t.wg.Done()
		f = t.await(next)
	}
}

// await returns the next task of a goroutine, or nil if the goroutine is to end.
func (t *tasks) await(next chan func()) func() {
	t.mu.Lock()
	if t.closed || len(t.idle) == mostIdle {
		t.mu.Unlock()
		return nil
	}
	t.idle = append(t.idle, next)
	t.mu.Unlock()
	return <-next
}

// close lets no further task start, and waits for those that run.
func (t *tasks) close() {
	t.mu.Lock()
	t.closed = true
	for _, next := range t.idle {
		close(next)
	}
	t.idle = nil
	t.mu.Unlock()
	t.wg.Wait()
}
