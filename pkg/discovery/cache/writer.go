package cache

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
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
)

// writer writes the latest set. put and close are for one goroutine.
type writer struct {
	path string
	log  *slog.Logger
	sets chan []*worker.Worker // one slot: the latest that was not taken yet
	done chan struct{}

	// Owned by the goroutine of run.
	told string // what was logged of the last write; "": nothing was wrong
}

func newWriter(path string, log *slog.Logger) *writer {
	w := &writer{path: path, log: log, sets: make(chan []*worker.Worker, 1), done: make(chan struct{})}
	go w.run()
	return w
}

// put hands the writer a set, which it owns from then on, in place of one that
// it has not taken.
func (w *writer) put(ws []*worker.Worker) {
	select {
	case <-w.sets:
	default:
	}
	w.sets <- ws
}

// close writes what is still to be written and returns.
func (w *writer) close() {
	close(w.sets)
	<-w.done
}

func (w *writer) run() {
	defer close(w.done)
	var (
		unwritten []*worker.Worker // nil: none; an empty set is not nil
		notBefore time.Time
		wake      <-chan time.Time // nil: nothing to wait for
	)
	for {
		select {
		case ws, ok := <-w.sets:
			if !ok {
				if unwritten != nil {
					w.write(unwritten)
				}
				return
			}
			unwritten = ws
		case <-wake:
		}
		if wait := time.Until(notBefore); wait > 0 {
			wake = time.After(wait)
			continue
		}
		wake = nil
		began := time.Now()
		pause := retry
		if w.write(unwritten) {
			unwritten = nil
			pause = max(interval, rest*time.Since(began))
		} else {
			wake = time.After(pause)
		}
		notBefore = time.Now().Add(pause)
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

func (w *writer) replace(ws []*worker.Worker) error {
	if err := os.MkdirAll(filepath.Dir(w.path), 0o755); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	return file.Write(w.path, ws)
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
