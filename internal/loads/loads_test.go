package loads

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func aWorker(t *testing.T, id worker.ID, e worker.Engine, change func(*worker.Worker)) *worker.Worker {
	t.Helper()
	at, err := worker.ParseEndpoint(fmt.Sprintf("10.0.%d.%d:8000", id/250, id%250+1))
	require.NoError(t, err)
	w := &worker.Worker{
		ID: id, Role: worker.Decode, Engine: e, Endpoint: at,
		Models: []string{"m"}, DPSize: 1, BlockSize: 16, CapacityBlocks: 1000, AcceptsAggregated: true,
	}
	if change != nil {
		change(w)
	}
	return w
}

func snapshot(t *testing.T, ws ...*worker.Worker) *worker.Snapshot {
	t.Helper()
	s, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	return s
}

func TestWhoIsAskedAndWhere(t *testing.T) {
	for _, row := range []struct {
		what   string
		engine worker.Engine
		change func(*worker.Worker)
		want   []string
	}{
		{"decode", worker.VLLM, nil, []string{"10.0.0.8:8000 0+1"}},
		{"aggregated", worker.SGLang, func(w *worker.Worker) { w.Role = worker.Aggregated }, []string{"10.0.0.8:8000 0+1"}},
		{"prefill has prompts that wait", worker.SGLang, func(w *worker.Worker) { w.Role = worker.Prefill }, []string{"10.0.0.8:8000 0+1"}},
		{"prefill may sleep", worker.VLLM, func(w *worker.Worker) { w.Role = worker.Prefill }, []string{"10.0.0.8:8000 0+1"}},
		{"no page", worker.TensorRTLLM, nil, nil},
		{"no HTTP", worker.VLLM, func(w *worker.Worker) { w.Fronted = true }, nil},
		{"ranks behind one port", worker.SGLang, func(w *worker.Worker) { w.DPSize = 3 }, []string{"10.0.0.8:8000 0+3"}},
		{
			"a port for each rank", worker.VLLM, func(w *worker.Worker) { w.DPSize, w.PortPerRank = 3, true },
			[]string{"10.0.0.8:8000 0+1", "10.0.0.8:8001 1+1", "10.0.0.8:8002 2+1"},
		},
		{"draining: what runs still counts", worker.VLLM, func(w *worker.Worker) { w.Draining = true }, []string{"10.0.0.8:8000 0+1"}},
	} {
		var got []string
		for _, p := range placesOf(aWorker(t, 7, row.engine, row.change)) {
			got = append(got, fmt.Sprintf("%s %d+%d", p.address, p.first, p.ranks))
		}
		require.Equal(t, row.want, got, row.what)
	}
}

func TestAPageTellsOfTheRanksBehindItsAddressAlone(t *testing.T) {
	page := func(ranks ...int) []byte {
		var b []byte
		for _, r := range ranks {
			b = fmt.Appendf(b, "vllm:num_requests_running{engine=\"%d\"} 2\nvllm:kv_cache_usage_perc{engine=\"%d\"} 0.5\n", r, r)
		}
		return b
	}
	for _, row := range []struct {
		what         string
		first        worker.DPRank
		ranks        uint32
		told         []int
		want         []worker.DPRank
		complainsFor string
	}{
		{"one", 0, 1, []int{0}, []worker.DPRank{0}, ""},
		{"one that counts otherwise", 0, 1, []int{5}, []worker.DPRank{0}, ""},
		{"its own of all", 1, 1, []int{0, 1, 2}, []worker.DPRank{1}, ""},
		{"its own alone, counted from 0", 2, 1, []int{0}, []worker.DPRank{2}, ""},
		{"all", 0, 2, []int{0, 1}, []worker.DPRank{0, 1}, ""},
		{"more than are known", 0, 2, []int{0, 1, 2}, []worker.DPRank{0, 1}, ""},
		{"others", 4, 1, []int{0, 1}, nil, "tells of 2 ranks, and of none of 4 to 4"},
		{"nobody", 0, 1, nil, nil, "expected vllm:num_requests_running"},
	} {
		p := place{id: 7, page: vllm.Pages.Running, first: row.first, ranks: row.ranks, blockSize: 16, capacity: 1000}
		reports, err := p.read(page(row.told...))
		if row.complainsFor != "" {
			require.ErrorIs(t, err, ask.ErrNotTold, row.what)
			require.ErrorContains(t, err, row.complainsFor, row.what)
			continue
		}
		require.NoError(t, err, row.what)
		var got []worker.DPRank
		for _, r := range reports {
			require.Equal(t, Report{worker.Rank{ID: 7, DPRank: r.Rank.DPRank}, 500, 2, 0, false, false}, r)
			got = append(got, r.Rank.DPRank)
		}
		require.ElementsMatch(t, row.want, got, row.what)
	}
}

// web answers as an engine would, by its address.
type web struct {
	mu    sync.Mutex
	asked map[string]int
	now   int // questions under way
	most  int
	took  time.Duration
	say   func(host string, n int) (status int, page string, err error)
}

func (w *web) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	if w.asked == nil {
		w.asked = map[string]int{}
	}
	w.asked[r.URL.Host]++
	n := w.asked[r.URL.Host]
	w.now++
	w.most = max(w.most, w.now)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.now--
		w.mu.Unlock()
	}()
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-time.After(w.took):
	}
	status, page, err := w.say(r.URL.Host, n)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(page))}, nil
}

func (w *web) count(host string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[host]
}

// heard is what a poller has handed on. A bubble's clock orders what a test reads before
// what the poller writes later, but the race detector does not know of it.
type heard struct {
	mu      sync.Mutex
	reports []Report        // guarded by mu
	counts  map[Outcome]int // guarded by mu
	text    bytes.Buffer    // guarded by mu
}

// Write takes the log.
func (h *heard) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.Write(b)
}

func (h *heard) log() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}

func (h *heard) told() []Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.reports)
}

func (h *heard) outcomes() map[Outcome]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.counts)
}

func start(t *testing.T, c Config, s *worker.Snapshot) (h *heard, p *Poller, end func()) {
	t.Helper()
	h = &heard{counts: map[Outcome]int{}}
	c.Heard = func(r Report, _ time.Time) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.reports = append(h.reports, r)
	}
	c.Counted = func(o Outcome) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.counts[o]++
	}
	c.Log, c.Seed = slog.New(slog.NewTextHandler(h, nil)), 1
	p = New(c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	p.Update(s)
	return h, p, func() {
		cancel()
		require.NoError(t, <-done)
	}
}

const sglangPage = `{"loads":[{"dp_rank":0,"num_running_reqs":3,"num_used_tokens":160}]}`

func TestEachWorkerIsAskedOnceAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &web{say: func(string, int) (int, string, error) { return 200, sglangPage, nil }}
		seven, eight := aWorker(t, 7, worker.SGLang, nil), aWorker(t, 8, worker.SGLang, nil)
		h, p, end := start(t, Config{Transport: w}, snapshot(t, seven, eight))
		<-time.After(60 * time.Second)
		synctest.Wait()
		for _, host := range []string{"10.0.0.8:8000", "10.0.0.9:8000"} {
			require.InDelta(t, 30, w.count(host), 4, host)
		}
		require.Equal(t, Report{worker.Rank{ID: 7}, 10, 3, 0, false, false}, h.told()[len(h.told())-1].with(7))
		// Who has left is not asked any more, and who stays is asked as before.
		p.Update(snapshot(t, eight))
		left, stays := w.count("10.0.0.8:8000"), w.count("10.0.0.9:8000")
		<-time.After(20 * time.Second)
		synctest.Wait()
		require.Equal(t, left, w.count("10.0.0.8:8000"))
		require.InDelta(t, stays+10, w.count("10.0.0.9:8000"), 2)
		p.Update(snapshot(t))
		stays = w.count("10.0.0.9:8000")
		<-time.After(time.Hour)
		require.Equal(t, stays, w.count("10.0.0.9:8000"))
		end()
		require.Empty(t, h.log())
	})
}

func (r Report) with(id worker.ID) Report {
	r.Rank.ID = id
	return r
}

// Whatever else a worker answers changes nothing, is told once, and is asked for less and
// less often; once it tells again, that is said, too.
func TestWhoDoesNotTellIsToldOfOnce(t *testing.T) {
	for _, row := range []struct {
		what   string
		say    func() (int, string, error)
		took   time.Duration
		counts Outcome
		says   string
	}{
		{"no page", func() (int, string, error) { return 404, "", nil }, 0, Refused, "status 404"},
		{"a redirect", func() (int, string, error) { return 307, "", nil }, 0, Refused, "status 307"},
		{"no JSON", func() (int, string, error) { return 200, "<html>", nil }, 0, Unreadable, "expected a JSON list"},
		{"other JSON", func() (int, string, error) { return 200, `{"loads":[{}]}`, nil }, 0, Unreadable, "num_used_tokens"},
		{"without end", func() (int, string, error) { return 200, strings.Repeat(" ", mostPage+1), nil }, 0, Unreadable, "at most 4194304 bytes"},
		{"breaks", func() (int, string, error) { return 0, "", errors.New("connection reset by peer") }, 0, Unreachable, "connection reset by peer"},
		{"hangs", nil, time.Minute, Unreachable, "deadline exceeded"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &web{took: row.took, say: func(_ string, n int) (int, string, error) {
				if n <= 12 {
					return row.say()
				}
				return 200, sglangPage, nil
			}}
			h, _, end := start(t, Config{Transport: w}, snapshot(t, aWorker(t, 7, worker.SGLang, nil)))
			<-time.After(4 * time.Minute)
			synctest.Wait()
			require.Empty(t, h.told(), row.what)
			asked := 11
			if row.took > 0 { // each question takes all of its time
				asked = 8
			}
			require.InDelta(t, asked, w.count("10.0.0.8:8000"), 1, row.what)
			require.Equal(t, 1, strings.Count(h.log(), "msg=\"an engine does not report"), row.what)
			require.Contains(t, h.log(), "worker_id=7 endpoint=10.0.0.8:8000", row.what)
			require.Contains(t, h.log(), row.says, row.what)
			require.Equal(t, map[Outcome]int{row.counts: w.count("10.0.0.8:8000")}, h.outcomes(), row.what)
			if row.took == 0 {
				<-time.After(3 * time.Minute)
				synctest.Wait()
				require.NotEmpty(t, h.told(), row.what)
				require.Equal(t, 1, strings.Count(h.log(), "running requests again"), row.what)
				require.Equal(t, 1, strings.Count(h.log(), "msg=\"an engine does not report"), row.what)
			}
			end()
		})
	}
}

// An engine that answers between long batches only is heard, however busy it is.
func TestABusyEngineIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &web{took: 5 * time.Second, say: func(string, int) (int, string, error) { return 200, sglangPage, nil }}
		h, _, end := start(t, Config{Transport: w}, snapshot(t, aWorker(t, 7, worker.SGLang, nil)))
		<-time.After(time.Minute)
		synctest.Wait()
		end()
		require.Empty(t, h.log())
		require.GreaterOrEqual(t, len(h.told()), 7)
	})
}

// One that fails every other time is no news each time, and its good answers count.
func TestASingleFailureIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &web{say: func(_ string, n int) (int, string, error) {
			if n%2 == 0 {
				return 500, "", nil
			}
			return 200, sglangPage, nil
		}}
		h, _, end := start(t, Config{Transport: w}, snapshot(t, aWorker(t, 7, worker.SGLang, nil)))
		<-time.After(time.Minute)
		synctest.Wait()
		end()
		require.Empty(t, h.log())
		require.Greater(t, h.outcomes()[OK], 5)
	})
}

// Of very many workers, all of them hanging, few questions are under way at once, and of
// very many that answer so many begin in a second as are allowed.
func TestAFleetIsAskedWithinBounds(t *testing.T) {
	var many []*worker.Worker
	for id := range worker.ID(2000) {
		many = append(many, aWorker(t, id+1, worker.SGLang, nil))
	}
	for _, hang := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := &web{took: 10 * time.Millisecond, say: func(string, int) (int, string, error) { return 200, sglangPage, nil }}
			if hang {
				w.took = time.Minute
			}
			h, _, end := start(t, Config{Transport: w}, snapshot(t, many...))
			<-time.After(20 * time.Second)
			synctest.Wait()
			end()
			require.LessOrEqual(t, w.most, mostAtOnce)
			if !hang {
				require.InDelta(t, 20*mostPerSecond, h.outcomes()[OK], mostPerSecond)
				least := 1 << 30
				for _, x := range many {
					least = min(least, w.count(x.Endpoint.String()))
				}
				require.Positive(t, least, "everybody has been asked")
			}
		})
	}
}

// Those that join together are not asked together.
func TestQuestionsAreSpread(t *testing.T) {
	a := agenda{interval: 2 * time.Second, rng: rand.New(rand.NewPCG(1, 1))}
	var many []*worker.Worker
	for id := range worker.ID(100) {
		many = append(many, aWorker(t, id+1, worker.VLLM, nil))
	}
	now := time.Unix(1000, 0)
	a.update(snapshot(t, many...), now)
	early := 0
	for _, x := range a.due {
		if x.due.Before(now.Add(time.Second)) {
			early++
		}
	}
	require.InDelta(t, 50, early, 20)
}

func TestWhoIsLeavingTellsOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &web{took: time.Hour}
		h, _, end := start(t, Config{Transport: w, Timeout: 2 * time.Hour}, snapshot(t, aWorker(t, 7, worker.VLLM, nil)))
		<-time.After(10 * time.Second)
		synctest.Wait()
		end()
		require.Empty(t, h.outcomes())
		require.Empty(t, h.log())
	})
}

// What a prefill worker runs are no answers, and its report says so.
func TestAnEngineThatSleepsIsTold(t *testing.T) {
	page := func(sleep string) string {
		return "vllm:num_requests_running{engine=\"0\"} 2\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n" +
			"vllm:engine_sleep_state{engine=\"0\",sleep_state=\"" + sleep + "\"} 1.0\n"
	}
	synctest.Test(t, func(t *testing.T) {
		w := &web{say: func(host string, _ int) (int, string, error) {
			return 200, page(map[string]string{"10.0.0.8:8000": "weights_offloaded", "10.0.0.9:8000": "discard_all", "10.0.0.10:8000": "awake"}[host]), nil
		}}
		var mu sync.Mutex
		asleep := map[worker.Rank]bool{}
		h, _, end := start(t, Config{Transport: w, Asleep: func(r worker.Rank) {
			mu.Lock()
			defer mu.Unlock()
			asleep[r] = true
		}}, snapshot(t,
			aWorker(t, 7, worker.VLLM, func(w *worker.Worker) { w.Role = worker.Prefill }),
			aWorker(t, 8, worker.VLLM, nil), aWorker(t, 9, worker.VLLM, nil)))
		<-time.After(5 * time.Second)
		end()
		require.Equal(t, map[worker.Rank]bool{{ID: 7}: true, {ID: 8}: true}, asleep)
		require.NotEmpty(t, h.told())
		for _, r := range h.told() {
			require.Equal(t, r.Rank.ID == 7, r.Prefills)
		}
	})
}

// roundTrip is a network of one function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestWhatEnginesLoseIsTold: of counters the rise counts, since a plugin that starts does not know when
// what is on a first page was; an engine that was started again counts from 0.
func TestWhatEnginesLoseIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := map[string]float64{}
		told := map[ask.Loss]uint64{}
		var mu sync.Mutex
		p := New(Config{
			Interval: time.Second, Seed: 1, Log: slog.New(slog.DiscardHandler), Heard: func(Report, time.Time) {},
			Lost: func(l ask.Loss, n uint64) { mu.Lock(); defer mu.Unlock(); told[l] += n },
			Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				page := "vllm:num_requests_running{engine=\"0\"} 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0\n"
				for name, n := range counts {
					page += fmt.Sprintf("# HELP vllm:nixl_num_%s_total of it\nvllm:nixl_num_%s_total{engine=\"0\",model_name=\"m\"} %g\n", name, name, n)
				}
				return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(page))}, nil
			}),
		})
		p.Update(snapshot(t, aWorker(t, 7, worker.VLLM, func(w *worker.Worker) { w.Role = worker.Prefill })))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = p.Run(ctx) }()
		set := func(name string, n float64) {
			mu.Lock()
			counts[name] = n
			mu.Unlock()
			<-time.After(5 * time.Second)
		}
		losses := func() (out []string) {
			for _, l := range p.Losses(time.Now()) {
				out = append(out, fmt.Sprintf("%s %s %s %d", l.Address, l.Worker, l.Kind, l.N))
			}
			return out
		}
		set("kv_expired_reqs", 40)
		require.Empty(t, losses(), "old")
		set("kv_expired_reqs", 42)
		set("notifications_after_expiry", 1)
		require.Equal(t, []string{"10.0.0.8:8000 7 expired 2", "10.0.0.8:8000 7 read_late 1"}, losses())
		set("kv_expired_reqs", 1)
		require.Equal(t, []string{"10.0.0.8:8000 7 expired 3", "10.0.0.8:8000 7 read_late 1"}, losses(), "started again")
		set("failed_transfers", 2)
		mu.Lock()
		require.Equal(t, map[ask.Loss]uint64{ask.Expired: 3, ask.ReadLate: 1, ask.Failed: 2}, told)
		mu.Unlock()
		<-time.After(lossKept)
		require.Empty(t, losses(), "no news")
		set("kv_expired_reqs", 2)
		require.Equal(t, []string{"10.0.0.8:8000 7 expired 1"}, losses())
		p.Update(snapshot(t))
		require.Empty(t, losses(), "it has left")
		stop()
		<-done
	})
}

// TestAPageThatCountsFromAnotherRankIsOfTheWorkersOwn, as of vLLM with hybrid balancing: the
// second node has ranks 2 and 3.
func TestAPageThatCountsFromAnotherRankIsOfTheWorkersOwn(t *testing.T) {
	page := &ask.RunningPage{Read: func([]byte, uint32, uint64) ([]ask.Running, error) {
		return []ask.Running{{Rank: 2, Requests: 5}, {Rank: 3, Requests: 7}}, nil
	}}
	p := place{id: 1, page: page, ranks: 2, engine: 2}
	got, err := p.read(nil)
	require.NoError(t, err)
	require.Equal(t, []Report{{Rank: worker.Rank{ID: 1}, Requests: 5}, {Rank: worker.Rank{ID: 1, DPRank: 1}, Requests: 7}}, got)
}
