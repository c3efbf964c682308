package health

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheLongestHoldIsNoShorterThanTheInterval(t *testing.T) {
	require.Equal(t, time.Minute, New(Config{ProbeInterval: time.Minute}).cfg.MaxHold)
}

func TestNamesAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for s := range numStates {
		require.False(t, seen[s.String()])
		seen[s.String()] = true
	}
	for o := range numOutcomes {
		require.False(t, seen[o.String()])
		seen[o.String()] = true
	}
	require.Equal(t, "invalid", numStates.String())
	require.Equal(t, "invalid", numOutcomes.String())
}

func TestTheFilterAllocatesNothing(t *testing.T) {
	tr := New(Config{})
	tr.Update(parseWorkers(t, "7 prefill\n8 prefill\n"), zero)
	haveAsked(tr)
	tr.Report(rankOf(7), Report{Outcome: ConnectFailed}, zero)
	p, _ := tr.begin(zero.Add(time.Hour))
	tr.probed(p, well, zero.Add(time.Hour))
	require.Equal(t, Half, tr.Standing(rankOf(7)))
	var version uint64
	changed := make([]worker.ID, 0, kept)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for _, r := range []worker.Rank{{ID: 7}, {ID: 8}} {
			tr.Allows(r)
			tr.End(r, tr.Begin(r))
			tr.Standing(r)
		}
		version, changed, _ = tr.Changes(version, changed[:0])
	}))
}

// Many requests ask, begin and end while the state of their worker changes
// under them; of those that began a trial at one time there is never a second.
func TestOnlyOneRequestTriesARecoveringWorker(t *testing.T) {
	tr := New(Config{})
	tr.Update(parseWorkers(t, "7 prefill\n8 prefill\n"), zero)
	stall(tr, 7, zero)
	tr.Report(rankOf(7), Report{}, zero)
	require.Equal(t, Recovering, tr.Status()[0].State)
	var pick sync.Mutex // as the book's lock
	trying := 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			r := worker.Rank{ID: 7}
			for range 500 {
				pick.Lock()
				if !tr.Allows(r) {
					pick.Unlock()
					continue
				}
				trial := tr.Begin(r)
				trying++
				if trying != 1 || trial == 0 {
					t.Errorf("%d at once, trial %d", trying, trial)
				}
				pick.Unlock()
				pick.Lock()
				trying--
				tr.End(r, trial)
				pick.Unlock()
			}
		})
	}
	wg.Wait()
	require.True(t, tr.Allows(worker.Rank{ID: 7}))
}

// stall sets a worker aside for two requests that were too slow.
func stall(tr *Tracker, id worker.ID, now time.Time) {
	tr.Report(rankOf(id), Report{Outcome: Overdue, Request: 1}, now)
	tr.Report(rankOf(id), Report{Outcome: Overdue, Request: 2}, now)
}

// workersHTTP answers probes in place of the network.
type workersHTTP struct {
	mu     sync.Mutex
	answer map[string]func(context.Context) (int, error) // by address, with or without path; none: 404
	batons map[string]bool                               // addresses, with or without path, at which a Baton answers
	models map[string]string                             // by address: the model that knockPath names
	seen   []string
	start  time.Time
}

func (w *workersHTTP) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.seen = append(w.seen, time.Since(w.start).String()+" "+r.Method+" "+r.URL.String())
	answer := w.answer[r.URL.Host+r.URL.Path]
	if answer == nil {
		answer = w.answer[r.URL.Host]
	}
	body := "{}"
	if m := w.models[r.URL.Host]; m != "" && r.URL.Path == knockPath {
		body = `{"data":[{"id":"` + m + `"}]}`
	}
	baton := w.batons[r.URL.Host+r.URL.Path] || w.batons[r.URL.Host]
	w.mu.Unlock()
	if answer == nil {
		answer = status(404)
	}
	status, err := answer(r.Context())
	if err != nil {
		return nil, err
	}
	res := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}
	if baton {
		res.Header.Set("X-Answered-By", "baton")
	}
	return res, nil
}

func (w *workersHTTP) set(host string, f func(context.Context) (int, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer[host] = f
}

func (w *workersHTTP) serves(host, model string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.models[host] = model
}

func (w *workersHTTP) probes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen)
}

func status(code int) func(context.Context) (int, error) {
	return func(context.Context) (int, error) { return code, nil }
}

func refused(context.Context) (int, error) { return 0, syscall.ECONNREFUSED }

// hang takes the connection and does not answer.
func hang(ctx context.Context) (int, error) {
	httptrace.ContextClientTrace(ctx).GotConn(httptrace.GotConnInfo{})
	return silence(ctx)
}

// comes answers well, after a while.
func comes(d time.Duration) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		httptrace.ContextClientTrace(ctx).GotConn(httptrace.GotConnInfo{})
		select {
		case <-time.After(d):
			return 200, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// silence does not even take the connection.
func silence(ctx context.Context) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// pass lets time go by inside a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

func TestTheProberBringsWorkersBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &workersHTTP{answer: map[string]func(context.Context) (int, error){}, start: time.Now()}
		tr := New(Config{Client: &http.Client{Transport: net}, Seed: 1, ProbeTimeout: time.Second})
		tr.rng = newRand(noJitter{})
		tr.Update(parseWorkers(t, "7 prefill\n8 prefill\n3 decode\n4 decode\n"), time.Now())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- tr.Run(ctx) }()

		// An hour of health: each is asked at its arrival, prefill at two addresses, and not probed.
		pass(time.Hour)
		require.Equal(t, 6, net.probes())
		net.seen, net.start = nil, time.Now()

		net.set("10.0.0.7:8000", refused)
		net.set("10.0.0.3:8000", hang)
		tr.Report(rankOf(7), Report{Outcome: ConnectFailed}, time.Now())
		stall(tr, 3, time.Now())
		pass(2500 * time.Millisecond) // 3 at 1 s until 2 s; 7 right after, and again
		synctest.Wait()
		require.ElementsMatch(t, []string{
			"1s GET http://10.0.0.3:8000/health", "1.005s GET http://10.0.0.7:8000/health", "2.005s GET http://10.0.0.7:8000/health",
		}, net.seen)
		states := func() (out []State) {
			for _, w := range tr.Status() {
				out = append(out, w.State)
			}
			return out
		}
		require.Equal(t, []State{Aside, Healthy, Aside, Healthy}, states())

		net.set("10.0.0.7:8000", status(200))
		net.set("10.0.0.3:8000", status(503))
		pass(time.Second) // 7 at 3 s and a little; 3, which was late, has two seconds now
		synctest.Wait()
		require.Equal(t, []State{Aside, Healthy, Recovering, Healthy}, states())

		net.set("10.0.0.3:8000", hang)
		pass(time.Second) // 3 at 4 s and a little
		synctest.Wait()
		require.Equal(t, []State{Probing, Healthy, Recovering, Healthy}, states())
		tr.Report(rankOf(7), Report{}, time.Now())
		require.Equal(t, []State{Probing, Healthy, Healthy, Healthy}, states())

		// Run ends only after the probe under way has.
		cancel()
		synctest.Wait()
		require.NoError(t, <-done)
	})
}

func TestProbesOfOneWorkerAreSpreadByChance(t *testing.T) {
	tr := New(Config{})
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		d := tr.jitterLocked(time.Second)
		least, most = min(least, d), max(most, d)
	}
	require.GreaterOrEqual(t, least, 800*time.Millisecond)
	require.Less(t, least, 850*time.Millisecond)
	require.LessOrEqual(t, most, 1200*time.Millisecond)
	require.Greater(t, most, 1150*time.Millisecond)
}

// TestAWorkerThatIsTriedIsNotAside: who has booked it must not take its own
// trial for a reason to go elsewhere.
func TestAWorkerThatIsTriedIsNotAside(t *testing.T) {
	tr := New(Config{})
	tr.Update(parseWorkers(t, "7 prefill\n8 prefill\n"), zero)
	require.False(t, tr.Aside(rankOf(7)))
	stall(tr, 7, zero)
	require.True(t, tr.Aside(rankOf(7)))
	tr.Report(rankOf(7), Report{}, zero)
	require.NotZero(t, tr.Begin(worker.Rank{ID: 7}))
	require.False(t, tr.Allows(worker.Rank{ID: 7}), "one at a time")
	require.False(t, tr.Aside(rankOf(7)))
}
