package health

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// probe is one GET to send.
type probe struct {
	id     worker.ID
	number uint64
	url    string
}

// Run probes workers that are aside, until ctx ends. It returns nil, after the
// last probe has ended. It sleeps while there is nothing to probe.
func (t *Tracker) Run(ctx context.Context) error {
	var probes sync.WaitGroup
	defer probes.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for _, p := range t.due(time.Now()) {
			probes.Go(func() {
				ok := t.send(ctx, p)
				t.probed(p.id, p.number, ok, time.Now())
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

// send reports whether the worker answered with success in time.
func (t *Tracker) send(ctx context.Context, p probe) bool {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.ProbeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return false
	}
	res, err := t.cfg.Client.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	return err == nil && res.StatusCode/100 == 2
}

// due marks the workers whose probe is due as Probing and returns the probes,
// ordered by id.
func (t *Tracker) due(now time.Time) []probe {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []probe
	for _, e := range t.workers {
		if e.state == Aside && !e.nextProbe.After(now) {
			e.state = Probing
			t.probes++
			e.probe = t.probes
			out = append(out, probe{e.id, e.probe, "http://" + e.endpoint.String() + t.cfg.ProbePath})
		}
	}
	slices.SortFunc(out, func(a, b probe) int { return cmp.Compare(a.id, b.id) })
	return out
}

// nextDue returns when the next probe is due, if one will be.
func (t *Tracker) nextDue() (at time.Time, any bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.workers {
		if e.state == Aside && (!any || e.nextProbe.Before(at)) {
			at, any = e.nextProbe, true
		}
	}
	return at, any
}

// probed takes the result of a probe. One of a worker that has moved on since
// is ignored.
func (t *Tracker) probed(id worker.ID, number uint64, ok bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.workers[id]
	if e == nil || e.state != Probing || e.probe != number {
		return
	}
	if ok {
		e.serverErrors = 0
		t.moveLocked(e, Recovering, ReasonProbe, now)
		t.publishLocked()
		return
	}
	e.state = Aside
	e.nextProbe = now.Add(t.jitterLocked(t.cfg.ProbeInterval))
	t.nudge()
}
