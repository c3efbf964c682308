//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// The canary of the incident that this project began with, and the probe that reads it:
// a pod whose engine does not answer so often in a row is killed.
const (
	canaryWait     = 10 * sweepTick
	canaryTimeout  = 3 * sweepTick
	canaryFailures = 6
)

// sweepRow is one burst sweep by the clock. Times are in seconds of that clock.
type sweepRow struct {
	name   string
	canary bool
	apart  int   // from one decode worker's death to the other's
	back   int   // from the later death to the first new decode worker
	asked  []int // from the later death to each burst that has to be served
}

func sweepRows() []sweepRow {
	return []sweepRow{
		{name: "canary off", back: 20, asked: []int{30, 90, 120}},
		{name: "canary on", canary: true, apart: 90, back: 50, asked: []int{60, 120, 180}},
	}
}

// TestBurstSweepByTheClock: both decode workers die under load, by hand or by their
// liveness probes, the second long after the first; for long there is none; and bursts
// at the times of the incident's report are served whole, by both legs. A tenth of those
// times, but with the tag long. Neither the requests in between nor those that met a hung
// worker are ever served by one worker alone.
func TestBurstSweepByTheClock(t *testing.T) {
	t.Parallel()
	for i, row := range sweepRows() {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			f := newEtcdFleet(t, i%2 == 1, "")
			f.tempted = true
			f.pods("prefill", 1)
			f.pods("aggregated", 1)
			f.byTheClock(row, f.pods("decode", 2))
			f.requireNoneAggregated()
			require.Equal(t, "prefill-ready", look(t, f.plugin).activation())
		})
	}
}

func (f *etcdFleet) byTheClock(row sweepRow, decode []*member) {
	f.t.Helper()
	stop := f.askSteadily()
	burst := make(chan []sent, 1)
	go func() { burst <- f.burst(20) }()
	if row.canary {
		f.killedByItsProbe(decode[0])
		f.after(time.Now(), row.apart-canaryFailures*10)
		f.killedByItsProbe(decode[1])
	} else {
		f.kill(decode...)
	}
	gone := time.Now()
	f.awaitGone(decode...)
	f.requireTyped(f.ask(), "while there is no decode worker", "no_decode_worker")

	f.after(gone, row.back)
	f.pods("decode", 2)
	for _, at := range row.asked {
		f.after(gone, at)
		for _, s := range f.burst(20) {
			f.requireServed(s, fmt.Sprintf("%s, after %d s", row.name, at))
		}
	}
	between := append(<-burst, stop()...)
	f.t.Logf("%s: of %d requests in between %d were refused", row.name, len(between), f.requireServedOrTyped(row.name, between))
}

// after waits until so many seconds of the clock after a moment.
func (f *etcdFleet) after(from time.Time, seconds int) {
	f.t.Helper()
	select {
	case <-time.After(time.Until(from.Add(time.Duration(seconds) * sweepTick))):
	case <-f.ctx.Done():
	}
}

// killedByItsProbe has a worker hang, and kills it once its liveness probe has failed so
// often.
func (f *etcdFleet) killedByItsProbe(m *member) {
	f.t.Helper()
	f.fault(m.worker, enginesim.Fault{Mode: enginesim.FaultHang, Health: true})
	for range canaryFailures {
		probed := time.Now()
		require.False(f.t, f.canary(m.worker), "the worker hangs")
		f.after(probed, int(canaryWait/sweepTick))
	}
	f.kill(m)
}

// canary reports whether a worker answers in time.
func (f *etcdFleet) canary(w *stack.Worker) bool {
	ctx, cancel := context.WithTimeout(f.ctx, canaryTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.Info.Endpoint.String()+"/health", nil)
	require.NoError(f.t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// askSteadily sends a request every two seconds of the clock, whether or not the one
// before has ended, until stop is called, which returns them all.
func (f *etcdFleet) askSteadily() (stop func() []sent) {
	ctx, cancel := context.WithCancel(f.ctx)
	var mu sync.Mutex
	var all []sent
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(2 * sweepTick)
		defer tick.Stop()
		for ctx.Err() == nil {
			wg.Go(func() {
				s := f.ask()
				mu.Lock()
				defer mu.Unlock()
				all = append(all, s)
			})
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return func() []sent {
		cancel()
		wg.Wait()
		return all
	}
}

// requireServedOrTyped takes what came of requests at any time: an answer, or a refusal
// that says to try again. It returns how many were refused.
func (f *etcdFleet) requireServedOrTyped(when string, all []sent) (refused int) {
	f.t.Helper()
	for _, s := range all {
		if s.err == nil && s.status == http.StatusOK {
			f.requireServed(s, when)
			continue
		}
		f.requireTyped(s, when, away...)
		refused++
	}
	return refused
}
