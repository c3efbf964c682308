package health

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// probe is one request that is to be sent.
type probe struct {
	rank   worker.Rank
	number uint64
	url    string
}

// flight says what the probe that is under way is for.
type flight uint8

const (
	grounded    flight = iota // none is under way
	onSchedule                // to bring back a worker that is aside
	onSuspicion               // to see whether a worker in service is alive
)

// verdict says what a probe has shown.
type verdict uint8

const (
	unclear     verdict = iota // the probe did not reach the worker, for a reason that is not the worker's
	well                       // the answer was a success
	answered                   // the answer was something else
	unreachable                // the connection was refused, or it broke
	silent                     // there was no answer in time
)

// Run probes workers that are aside or suspect, until ctx ends. It returns nil after the
// last probe has ended. It sleeps while there is nothing to probe.
func (t *Tracker) Run(ctx context.Context) error {
	var probes sync.WaitGroup
	defer probes.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if p, any := t.begin(time.Now()); any {
			probes.Go(func() {
				v := t.send(ctx, p)
				t.probed(p.rank, p.number, v, time.Now())
			})
		}
		var fire <-chan time.Time
		if at, any := t.nextDue(); any {
			timer.Reset(max(0, time.Until(at)))
			fire = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.wake:
		case <-fire:
		}
	}
}

func (t *Tracker) send(ctx context.Context, p probe) verdict {
	within, cancel := context.WithTimeout(ctx, t.cfg.ProbeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(within, http.MethodGet, p.url, nil)
	if err != nil {
		return unclear
	}
	res, err := t.cfg.Client.Do(req)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return unclear // ctx has ended: the error says nothing about the worker
	default:
		return verdictOf(err)
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	if err != nil || res.StatusCode/100 != 2 {
		return answered
	}
	return well
}

// verdictOf tells failures of the worker, or of the way to it, from failures on this
// machine: that no file descriptor is free does not mean that a worker is dead.
func verdictOf(err error) verdict {
	if errors.Is(err, context.DeadlineExceeded) {
		return silent
	}
	for _, sign := range [...]error{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.EHOSTUNREACH,
		syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ETIMEDOUT, io.EOF, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, sign) {
			return unreachable
		}
	}
	return unclear
}

// aheadMost is how many suspects in a row are probed before a worker aside that is due:
// workers come back even while a whole fleet is suspect.
const aheadMost = 3

// begin returns the next probe if one is due. A gap between two probes spreads those of a
// large pool that has failed at once.
func (t *Tracker) begin(now time.Time) (p probe, any bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Before(t.nextBegin) {
		return probe{}, false
	}
	e, back := t.suspects.ready(now), t.scheduled.ready(now)
	switch {
	case e != nil && (back == nil || t.ahead < aheadMost):
		e.flight, e.asked = onSuspicion, now
		if t.ahead++; back == nil {
			t.ahead = 0
		}
	case back == nil:
		return probe{}, false
	case back.flight != grounded: // the probe on suspicion is still under way
		t.scheduled.put(back, now.Add(t.cfg.ProbeInterval))
		return probe{}, false
	default:
		e, t.ahead = back, 0
		e.state.Store(uint32(Probing))
		e.flight = onSchedule
	}
	e.strike()
	t.nextBegin = now.Add(t.gap)
	t.probes++
	e.probe = t.probes
	return probe{e.rank, e.probe, "http://" + e.endpoint.String() + t.cfg.ProbePath}, true
}

// nextDue returns when the next probe is due, if there is one.
func (t *Tracker) nextDue() (at time.Time, any bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range [...]*agenda{&t.suspects, &t.scheduled} {
		if e := a.first(); e != nil && (!any || e.due.Before(at)) {
			at, any = e.due, true
		}
	}
	if any && at.Before(t.nextBegin) {
		at = t.nextBegin
	}
	return at, any
}

// probed takes the result of a probe. It ignores a result that is not of the worker's
// latest probe.
func (t *Tracker) probed(r worker.Rank, number uint64, v verdict, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.find(r)
	if e == nil || e.flight == grounded || e.probe != number {
		return
	}
	on := e.flight
	e.flight = grounded
	dead := v == unreachable || v == silent
	switch {
	case on == onSuspicion && dead:
		t.condemnLocked(e, e.reasonFor(v), now)
	case on == onSchedule && e.is() == Probing && v == well:
		e.serverErrors = 0
		t.moveLocked(e, Recovering, false, ReasonProbe, now)
	case on == onSchedule && e.is() == Probing:
		e.state.Store(uint32(Aside))
		if dead {
			t.condemnLocked(e, e.reason, now)
		}
		t.scheduled.put(e, now.Add(t.jitterLocked(t.cfg.ProbeInterval)))
		t.nudge()
	}
}

// reasonFor returns why a suspect is set aside: if it is silent, the reason is the stall
// that made it suspect.
func (e *entry) reasonFor(v verdict) Reason {
	switch {
	case v == unreachable:
		return reasonOf(ConnectFailed)
	case e.why == Overdue:
		return reasonOf(Overdue)
	default:
		return reasonOf(Timeout)
	}
}
