package kvevents

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// feed writes the events of one rank to the index, and has the rank's status. Any
// goroutine may read the status; the rest is for the goroutine that applies the rank's
// events.
type feed struct {
	// set at construction, read-only
	cfg  *Config
	rank worker.Rank
	log  *slog.Logger

	named bool // the worker names an address for the rank's events

	heard    atomic.Bool // a message was applied
	unusable atomic.Bool // as Told.Unusable

	// turn is held while an event of the rank is judged or applied, so that others find the
	// rank's stream and the index in agreement. It guards kept, gone, and what a stream or
	// a planeRank says. It is taken before mu and the index's own locks.
	turn sync.Mutex
	kept *kept // of an earlier process, until it is judged; nil: nothing waits
	gone bool  // the rank is being detached from the index

	// mu guards status. No other lock is taken under it.
	mu     sync.Mutex
	status RankStatus
}

// begin sets the zero feed up for the rank.
func (f *feed) begin(cfg *Config, r worker.Rank) {
	f.cfg, f.rank, f.log = cfg, r, cfg.Logger.With(rankAttrs(r)...)
	f.status = RankStatus{Rank: r, Since: time.Now()}
}

// drop drops the rank's blocks, also those of an earlier process that wait.
func (f *feed) drop(why Cause) {
	f.keep(nil)
	_ = f.cfg.Index.Clear(f.rank) // cannot fail: the rank is attached while it is followed
	f.mu.Lock()
	f.status.Resets++
	f.status.Missing = Refusals{}
	f.mu.Unlock()
	f.cfg.Hooks.Reset(f.rank, why)
	f.log.Info("kv blocks of the rank dropped", slog.String(logkey.Cause, why.String()))
}

// perform gives one event to the index, and returns how many blocks the event names.
func (f *feed) perform(e *Event, refused *Refusals) (blocks int) {
	var err error
	switch e.Kind {
	case Stored:
		err = f.cfg.Index.Store(f.rank, e.Stored)
		blocks = len(e.Stored.Blocks)
	case Removed:
		err = f.cfg.Index.Remove(f.rank, e.Removed)
		blocks = len(e.Removed.Blocks)
	case Cleared:
		err = f.cfg.Index.Clear(f.rank)
		f.mu.Lock() // all that was missing is gone too
		f.status.Missing = Refusals{}
		f.mu.Unlock()
	}
	switch {
	case errors.Is(err, kvindex.ErrUnknownParent):
		refused[UnknownParent]++
	case errors.Is(err, kvindex.ErrConflict):
		refused[HashConflict]++
	case errors.Is(err, kvindex.ErrNoRoom):
		refused[NoRoom]++
	case err != nil:
		f.fault(err)
	}
	return blocks
}

// applied notes that a message was applied.
func (f *feed) applied(events, blocks int) {
	f.mu.Lock()
	f.status.Messages++
	f.status.Events += uint64(events)
	f.status.LastAt = time.Now()
	f.status.AsOf = f.status.LastAt
	f.mu.Unlock()
	f.heard.Store(true)
	f.cfg.Hooks.Applied(f.rank, events, blocks)
}

// whole notes that all messages of the publisher were heard.
func (f *feed) whole() {
	f.mu.Lock()
	f.status.AsOf = time.Now()
	f.mu.Unlock()
}

// refuse counts n events that were not used for this reason.
func (f *feed) refuse(why Reason, n uint64) {
	if n == 0 {
		return
	}
	f.mu.Lock()
	f.status.Refused[why] += n
	if !why.Normal() {
		f.status.Missing[why] += n
	}
	f.mu.Unlock()
	f.cfg.Hooks.Refused(f.rank, why, n)
}

func (f *feed) refuseAll(r *Refusals) {
	for why, n := range r {
		f.refuse(Reason(why), n)
	}
}

func (f *feed) fault(err error) {
	f.mu.Lock()
	f.status.LastError, f.status.LastFault = err.Error(), time.Now()
	f.mu.Unlock()
	f.log.Debug("kv events", slog.Any(logkey.Err, err))
}

func (f *feed) setState(st State) {
	f.mu.Lock()
	changed := f.status.State != st
	if changed {
		f.status.State, f.status.Since = st, time.Now()
	}
	lastError := f.status.LastError
	f.mu.Unlock()
	if changed {
		f.cfg.Hooks.State(f.rank, st)
		f.log.Info("kv events", slog.String(logkey.State, st.String()), slog.String(logkey.LastError, lastError))
	}
}

func (f *feed) snapshot() RankStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}
