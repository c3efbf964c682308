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

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/internal/wholefile"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
)

const (
	// interval is the least time from the end of a write to the next write.
	interval = 200 * time.Millisecond
	// rest is how many times longer than a write the pause after it is, if that is more
	// than interval: thousands of workers that come and go must not use up a core.
	rest = 10
	// retry is the pause after a failed write.
	retry = 10 * time.Second
	// breakWait and endWait are how long Run waits for the disk: breakWait if Run is
	// called again soon, endWait at the end, when what is not written yet is lost.
	breakWait = 100 * time.Millisecond
	endWait   = 5 * time.Second
	// vouches is how often in MaxAge an unchanged set is written again. The time of the
	// file says when the source last vouched for the set.
	vouches = 10
)

// writer writes the latest set, in a goroutine that runs while there is something to
// write. All Runs of a source use one writer. So if a disk hangs, only that goroutine
// waits for it, and each set that comes meanwhile replaces the one before. put and
// flush are for one goroutine at a time.
type writer struct {
	// set at construction, read-only
	path    string
	owner   string // the identity; "": none
	log     *slog.Logger
	replace func(ws []discovery.Entry) error // writes the file; tests replace it

	mu      sync.Mutex        // guards this group
	next    []discovery.Entry // the latest set, not yet taken by the goroutine; nil: none
	busy    bool              // the goroutine runs
	idle    chan struct{}     // closed when the goroutine has ended
	hurry   chan struct{}     // closed: there are no pauses, and a failed write is not tried again
	hurried bool              // hurry is closed

	// Owned by the goroutine; mu passes them on to the next goroutine.
	notBefore time.Time
	told      string // what was logged about the last write; "": it was good
}

func newWriter(path, owner string, log *slog.Logger) *writer {
	w := &writer{path: path, owner: owner, log: log, hurry: make(chan struct{})}
	w.replace = w.toDisk
	return w
}

// put hands a set to the writer, which owns it from then on. It replaces a set that was
// not taken yet.
func (w *writer) put(ws []discovery.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = ws
	if w.hurried { // the Run before has ended
		w.hurry, w.hurried = make(chan struct{}), false
	}
	if !w.busy {
		w.busy, w.idle = true, make(chan struct{})
		go w.run(w.idle)
	}
}

// flush has the pending set written at once, and waits for that up to wait. Afterwards
// the writing goes on by itself.
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
		w.log.Warn("the disk is slow: new workers are used before they are saved", slog.String(logkey.Path, w.path), slog.Duration(logkey.Waited, wait))
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

// take returns the set to write. False means that there is none: the goroutine has to
// end.
func (w *writer) take() (ws []discovery.Entry, any bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ws, w.next = w.next, nil
	w.busy = ws != nil // an empty set is not nil
	return ws, w.busy
}

// giveBack keeps a set that could not be written, so that it is tried again, unless a
// newer one came.
func (w *writer) giveBack(ws []discovery.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil && !w.hurried {
		w.next = ws
	}
}

// write reports whether the file has the set now, apart from workers that no file can
// hold.
func (w *writer) write(ws []discovery.Entry) bool {
	err := w.replace(ws)
	if err == nil {
		w.tell("", nil)
		return true
	}
	// If one worker cannot be held in the file, the others must still be written.
	some, faults := holdable(ws)
	if len(faults) > 0 && w.replace(some) == nil {
		w.tell("some workers cannot be remembered", errors.Join(faults...))
		return true
	}
	w.tell("the workers cannot be remembered", err)
	return false
}

func (w *writer) toDisk(ws []discovery.Entry) error {
	if err := os.MkdirAll(filepath.Dir(w.path), 0o755); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	data, err := written(w.owner, ws)
	if err != nil {
		return err
	}
	if err := wholefile.Replace(w.path, data); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	return nil
}

// holdable returns the workers that a file can hold, and the faults of the others.
func holdable(ws []discovery.Entry) ([]discovery.Entry, []error) {
	var faults []error
	some := make([]discovery.Entry, 0, len(ws))
	for _, one := range ws {
		if _, err := record.Marshal(one.Worker); err != nil {
			faults = append(faults, err)
			continue
		}
		some = append(some, one)
	}
	return some, faults
}

// tell logs how the last write went, if that differs from the write before. It compares
// no errors, since each names another temporary file.
func (w *writer) tell(what string, err error) {
	if what == w.told {
		return
	}
	w.told = what
	if err == nil {
		w.log.Info("all workers are saved again", slog.String(logkey.Path, w.path))
		return
	}
	w.log.Warn(what, slog.String(logkey.Path, w.path), slog.String(logkey.Err, strings.ReplaceAll(err.Error(), "\n", "; ")))
}
