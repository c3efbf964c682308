package cache

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	// interval is the least time between two writes.
	interval = 200 * time.Millisecond
	// rest is how many times its own length the pause after a write lasts, if
	// that is more than interval: thousands of workers that come and go must not
	// cost a core.
	rest = 10
	// retry is the pause after a write that failed.
	retry = 10 * time.Second
	// breakWait and endWait bound how long Run waits for the disk: when it is
	// run again soon, and at the end, when what is not written is lost.
	breakWait = 100 * time.Millisecond
	endWait   = 5 * time.Second
	// vouches is how many times in MaxAge a set that does not change is written
	// again: the file's time says when it was last vouched for.
	vouches = 10
)

// writer writes the latest set, in a goroutine that lives while there is
// something to write. One writer serves every Run of a source: a disk that hangs
// is waited for by that one goroutine, and the sets that come meanwhile take each
// other's place. put and flush are for one goroutine at a time.
type writer struct {
	// set at construction, read-only
	path    string
	owner   string // the identity; "": none
	log     *slog.Logger
	replace func(ws []*worker.Worker) error // what the file holds

	mu      sync.Mutex
	next    []*worker.Worker // the latest that was not taken yet; nil: none
	busy    bool             // the goroutine lives
	idle    chan struct{}    // closed when it has ended
	hurry   chan struct{}    // closed: pauses are not kept, and a failure is final
	hurried bool             // hurry is closed

	// Owned by the goroutine, and handed on by mu.
	notBefore time.Time
	told      string // what was logged of the last write; "": nothing was wrong
}

func newWriter(path, owner string, log *slog.Logger) *writer {
	w := &writer{path: path, owner: owner, log: log, hurry: make(chan struct{})}
	w.replace = w.toDisk
	return w
}

// put hands the writer a set, which it owns from then on, in place of one that
// it has not taken.
func (w *writer) put(ws []*worker.Worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = ws
	if w.hurried { // by the end of the Run before
		w.hurry, w.hurried = make(chan struct{}), false
	}
	if !w.busy {
		w.busy, w.idle = true, make(chan struct{})
		go w.run(w.idle)
	}
}

// flush lets what is still to be written be written at once, and waits for it
// as long as is said; it goes on by itself after that.
func (w *writer) flush(wait time.Duration) {
	w.mu.Lock()
	busy, idle := w.busy, w.idle
	if busy && !w.hurried {
		close(w.hurry)
		w.hurried = true
	}
	w.mu.Unlock()
	if !busy {
		return
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case <-idle:
	case <-limit.C:
		w.log.Warn("the disk is slow: it is not waited for", slog.String("path", w.path), slog.Duration("waited", wait))
	}
}

func (w *writer) run(idle chan<- struct{}) {
	defer close(idle)
	for {
		w.pause()
		ws, any := w.take()
		if !any {
			return
		}
		began := time.Now()
		pause := retry
		if w.write(ws) {
			pause = max(interval, rest*time.Since(began))
		} else {
			w.giveBack(ws)
		}
		w.notBefore = time.Now().Add(pause)
	}
}

// pause waits until the next write may begin.
func (w *writer) pause() {
	w.mu.Lock()
	hurry := w.hurry
	w.mu.Unlock()
	if wait := time.Until(w.notBefore); wait > 0 {
		select {
		case <-time.After(wait):
		case <-hurry:
		}
	}
}

// take returns the set to write, or ends the goroutine's duty.
func (w *writer) take() (ws []*worker.Worker, any bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ws, w.next = w.next, nil
	w.busy = ws != nil // an empty set is not nil
	return ws, w.busy
}

// giveBack keeps a set that could not be written for another try.
func (w *writer) giveBack(ws []*worker.Worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil && !w.hurried {
		w.next = ws
	}
}

// write reports whether the set is in the file, as far as the file can hold it.
func (w *writer) write(ws []*worker.Worker) bool {
	err := w.replace(ws)
	if err == nil {
		w.tell("", nil)
		return true
	}
	// One worker that the file cannot hold must not cost the others.
	some, faults := holdable(ws)
	if len(faults) > 0 && w.replace(some) == nil {
		w.tell("some workers cannot be remembered", errors.Join(faults...))
		return true
	}
	w.tell("the workers cannot be remembered", err)
	return false
}

func (w *writer) toDisk(ws []*worker.Worker) error {
	if err := os.MkdirAll(filepath.Dir(w.path), 0o755); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	data, err := written(w.owner, ws)
	if err != nil {
		return err
	}
	if err := file.Replace(w.path, data); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	return nil
}

// holdable parts the workers that a file can hold from the faults of the others.
func holdable(ws []*worker.Worker) ([]*worker.Worker, []error) {
	var faults []error
	some := make([]*worker.Worker, 0, len(ws))
	for _, one := range ws {
		if _, err := file.MarshalWorker(one); err != nil {
			faults = append(faults, err)
			continue
		}
		some = append(some, one)
	}
	return some, faults
}

// tell logs how the last write went, when that is news. The error is not
// compared: it names a file that is another at each try.
func (w *writer) tell(what string, err error) {
	if what == w.told {
		return
	}
	w.told = what
	if err == nil {
		w.log.Info("all workers are remembered again", slog.String("path", w.path))
		return
	}
	w.log.Warn(what, slog.String("path", w.path), slog.String("err", strings.ReplaceAll(err.Error(), "\n", "; ")))
}
