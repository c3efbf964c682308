package shadow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/whatif"
)

const (
	window       = 10 * time.Minute
	mostRequests = 4096
	fewest       = 100     // requests, from which on something is said
	mostBlocks   = 1 << 19 // of all prompts together
	every        = time.Minute
	slice        = 2 * time.Millisecond // of work, before a pause
	share        = 0.05                 // of a core
	indexBytes   = 256 << 20            // that the index of a simulated plugin may take
)

// Memory returns the store that a Shadow reads.
func Memory() *record.Memory { return &record.Memory{MaxBytes: 12 << 20, FileBytes: 4 << 20} }

// Result is what was found.
type Result struct {
	At      time.Time
	Why     string         // why nothing is said; "": something is
	Active  *whatif.Report // the policy in force, simulated; it has the error, and what was measured
	Another *whatif.Report // the second policy, simulated
}

// Shadow plays a second policy. Safe for concurrent use.
type Shadow struct {
	memory          *record.Memory
	active, another whatif.Config
	latest          atomic.Pointer[Result]
}

// New returns a Shadow of the second policy.
func New(m *record.Memory, active, another whatif.Config) *Shadow {
	active.IndexBytes, another.IndexBytes = indexBytes, indexBytes
	return &Shadow{memory: m, active: active, another: another}
}

// Latest returns the newest result; nil: there is none yet, or no Shadow.
func (s *Shadow) Latest() *Result {
	if s == nil {
		return nil
	}
	return s.latest.Load()
}

// Run works until ctx ends.
func (s *Shadow) Run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			r := s.look(ctx)
			if ctx.Err() != nil {
				return nil
			}
			s.latest.Store(r)
		case <-ctx.Done():
			return nil
		}
	}
}

// look plays the latest requests.
func (s *Shadow) look(ctx context.Context) (r *Result) {
	p := &paused{ctx: ctx, since: time.Now()}
	r = &Result{At: p.since}
	defer func() {
		if fault := recover(); fault != nil { // requests are served all the same
			r = &Result{At: p.since, Why: fmt.Sprintf("a fault of Baton's; please report it: %v", fault)}
		}
	}()
	in, err := s.input(p)
	if err == nil {
		err = p.pause()
	}
	o := whatif.Defaults()
	o.Seeds, o.Warm, o.Between = 1, 0.5, p.between
	if err == nil {
		r.Active, err = whatif.Play(in, &o, s.active)
	}
	if err == nil {
		r.Another, err = whatif.Play(in, &o, s.another)
	}
	if err != nil {
		return &Result{At: r.At, Why: err.Error()}
	}
	return r
}

func (s *Shadow) input(p *paused) (*whatif.Input, error) {
	l := record.NewLog()
	for _, f := range s.memory.Files() {
		err := l.Read(bytes.NewReader(f))
		if err == nil {
			err = p.pause()
		}
		if err != nil {
			return nil, err
		}
	}
	l.Done()
	if len(l.Requests) > 0 {
		from := l.Requests[len(l.Requests)-1].At.Add(-window)
		blocks, first := 0, len(l.Requests)
		for first > 0 && len(l.Requests)-first < mostRequests && l.Requests[first-1].At.After(from) && blocks < mostBlocks {
			first--
			blocks += l.Blocks(&l.Requests[first])
		}
		l.Requests = l.Requests[first:]
	}
	if len(l.Requests) < fewest {
		return nil, errors.New("too few requests of late")
	}
	l.Notes = nil // files in memory begin in the middle
	return whatif.FromRecord(l, "")
}

// paused keeps work to its share of a core.
type paused struct {
	ctx   context.Context //nolint:containedctx // of one look
	since time.Time       // when work went on
}

// between is called between small pieces of work.
func (p *paused) between() error {
	if time.Since(p.since) < slice {
		return nil
	}
	return p.pause()
}

// pause waits until the work since the last pause is its share of the time.
func (p *paused) pause() error {
	worked := time.Since(p.since)
	t := time.NewTimer(time.Duration(float64(worked) * (1 - share) / share))
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
	p.since = time.Now()
	return nil
}
