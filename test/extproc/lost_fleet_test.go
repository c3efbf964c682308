package extproc_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/extproc/extproctest"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/hitloss"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire/wiretest"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// lossPage is the block size of the simulated engines, lossPrompt how many blocks a prompt has.
const lossPage, lossPrompt = 16, 20

// lossFleet is a plugin with simulated engines that serve whole requests, and their KV events.
// The test stands in Envoy's place. Its journal keeps 64 records.
type lossFleet struct {
	*replica
	journal *journal.Journal
	events  *kvevents.Subscriber
	sims    []*enginesim.Sim
	workers []*worker.Worker
	lists   extproctest.Lists
	running atomic.Int64 // requests that were routed and have not ended
	start   func(enginesim.Config) *enginesim.Sim
	stops   []func() // end an engine each
}

// newLossFleet starts n engines. Of tells false: none of them publishes events.
func newLossFleet(t *testing.T, n int, tells bool, engine worker.Engine, change func(*enginesim.Config), conf func(*extproc.Config)) *lossFleet {
	t.Helper()
	f := &lossFleet{}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	f.start = func(c enginesim.Config) *enginesim.Sim {
		s, err := enginesim.New(c)
		require.NoError(t, err)
		life, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		running.Go(func() { _ = s.Run(life); close(ended) })
		f.stops = append(f.stops, func() { stop(); <-ended })
		return s
	}
	for i := range n {
		c := enginesim.Config{
			ID: worker.ID(i + 1), Role: worker.Aggregated, Engine: engine, Models: []string{"m"}, PageSize: lossPage,
			PrefillPerToken: enginesim.None, DecodePerToken: enginesim.None,
		}
		if change != nil {
			change(&c)
		}
		s := f.start(c)
		f.sims = append(f.sims, s)
		f.workers = append(f.workers, recordOf(t, s, c, tells))
	}
	f.lists = listed(f.workers)
	f.replica = newReplica(t, "a", f.lists, func(c *extproc.Config) {
		var err error
		f.events, err = kvevents.NewSubscriber(kvevents.Config{
			Index: c.Index, Timeout: 300 * time.Millisecond, ReplayAttempts: 1, MaxBackoff: 100 * time.Millisecond, Check: 100 * time.Millisecond, Audit: 300 * time.Millisecond,
			Hooks: kvevents.Hooks{State: func(r worker.Rank, s kvevents.State) {
				f.parts.Book.SetDegraded(r, s != kvevents.StateConnected && s != kvevents.StateNone)
			}},
		})
		require.NoError(t, err)
		c.Resync, c.Events = f.events.Resync, f.events.Heard
		f.journal, err = journal.New(64)
		require.NoError(t, err)
		c.Journal = f.journal
		if conf != nil {
			conf(c)
		}
	})
	f.parts.View.Subscribe(func(old, now *worker.Snapshot, c discovery.Change) {
		f.events.Update(now)
		f.srv.OnChange(old, c)
	})
	running.Go(func() { _ = f.events.Run(ctx) })
	running.Go(func() { _ = f.parts.Routes.Run(ctx) })
	if tells {
		f.inStep()
	}
	return f
}

func recordOf(t *testing.T, s *enginesim.Sim, c enginesim.Config, tells bool) *worker.Worker {
	t.Helper()
	at, err := worker.ParseEndpoint(s.Addr())
	require.NoError(t, err)
	w := &worker.Worker{Taints: []string{fmt.Sprintf("of%d", c.ID)}, ID: c.ID, Role: c.Role, Engine: c.Engine, Endpoint: at, Models: c.Models, DPSize: 1, BlockSize: lossPage, CapacityBlocks: 1 << 16}
	if tells {
		pub, replay := s.EventsAddr(0)
		if replay == "" {
			replay = "none:0"
		}
		port := func(addr string) uint16 {
			_, p, err := net.SplitHostPort(addr)
			require.NoError(t, err)
			n, err := strconv.ParseUint(p, 10, 16)
			require.NoError(t, err)
			return uint16(n)
		}
		w.KVEvents = worker.KVEvents{Host: "127.0.0.1", Port: port(pub), ReplayPort: port(replay)}
	}
	return w
}

// inStep waits until the events of all engines come.
func (f *lossFleet) inStep() {
	f.t.Helper()
	f.await("the events of all engines to come", func() bool {
		n := 0
		for _, s := range f.events.Status() {
			if s.State == kvevents.StateConnected {
				n++
			}
		}
		return n == len(f.sims)
	})
}

func (f *lossFleet) doubted() []hitloss.Doubt { return extproc.Doubted(f.srv, time.Now()) }

func (f *lossFleet) await(what string, ok func() bool) {
	f.t.Helper()
	require.Eventually(f.t, ok, 20*time.Second, time.Millisecond, what)
}

// known waits until events have told of so many blocks of the rank.
func (f *lossFleet) known(id worker.ID, blocks uint64) {
	f.t.Helper()
	f.await("the index to know the prompt", func() bool {
		s, _ := f.parts.Index.Stats(worker.Rank{ID: id})
		return s.Stored >= blocks
	})
}

// idsPrompt is a request of so many blocks and a token, as token ids; equal seeds give equal prompts.
func idsPrompt(seed uint64, blocks int, more string) string {
	rng := rand.New(rand.NewPCG(seed, 9))
	var b strings.Builder
	b.WriteString(`{"model":"m","max_tokens":1,"prompt":[1`)
	for range blocks * lossPage {
		fmt.Fprintf(&b, ",%d", 10+rng.IntN(30000))
	}
	return b.String() + "]" + more + "}"
}

// textPrompt is a request whose tokens can only be estimated.
func textPrompt(seed uint64) string {
	rng := rand.New(rand.NewPCG(seed, 9))
	var b strings.Builder
	for range 200 {
		fmt.Fprintf(&b, "word%d ", rng.IntN(100000))
	}
	return fmt.Sprintf(`{"model":"m","max_tokens":1,"prompt":%q}`, b.String())
}

// onItsWay is one request that was routed.
type onItsWay struct {
	e        *exchange
	body, id string
	to       worker.ID
	set      map[string]string
}

func (f *lossFleet) route(body string, headers ...string) *onItsWay {
	f.t.Helper()
	f.running.Add(1)
	var filter []string
	if headers != nil {
		filter = []string{"x-baton-routing", "prerouted"}
	}
	e := f.open(filter...)
	id := strconv.FormatUint(rand.Uint64(), 36)
	set := e.ask(body, append(headers, "x-request-id", id)...)
	for i, s := range f.sims {
		if s.Addr() == set[prefill.HeaderDestination] {
			return &onItsWay{e, body, id, f.workers[i].ID, set}
		}
	}
	require.Fail(f.t, "nobody is at "+set[prefill.HeaderDestination])
	return nil
}

// answer has the engine serve the request, and tells the plugin how, as Envoy's access log does. It
// returns the record of the request.
func (f *lossFleet) answer(r *onItsWay) decision.Record {
	f.t.Helper()
	resp, err := http.Post("http://"+r.set[prefill.HeaderDestination]+"/v1/completions", "application/json", strings.NewReader(r.body)) //nolint:noctx // to loopback
	require.NoError(f.t, err)
	answer, err := io.ReadAll(resp.Body)
	require.NoError(f.t, err)
	require.NoError(f.t, resp.Body.Close())
	require.Equal(f.t, 200, resp.StatusCode, "%s", answer)
	u, ok := openai.FindUsage(answer)
	require.True(f.t, ok && u.HasCached, "%s", answer)
	r.e.send(wiretest.ResponseHeaders("200", "content-type", "application/json", "content-length", strconv.Itoa(len(answer))))
	require.NotNil(f.t, r.e.recv().GetResponseHeaders())
	f.logged(r.set[prefill.HeaderAttempt], u)
	r.e.cancel()
	var record decision.Record
	f.await("the request to end", func() bool {
		if f.srv.Attempts() >= int(f.running.Load()) {
			return false
		}
		f.journal.Visit(func(rec *decision.Record) {
			if rec.RequestID == r.id {
				record = *rec
			}
		})
		return record.Outcome != decision.Routed
	})
	f.running.Add(-1)
	require.Equal(f.t, decision.OK, record.Outcome)
	return record
}

func (f *lossFleet) ask(body string, headers ...string) decision.Record {
	f.t.Helper()
	return f.answer(f.route(body, headers...))
}

// warm has an engine compute a prompt, and returns which one, once the index knows.
func (f *lossFleet) warm(body string, tells bool) worker.ID {
	f.t.Helper()
	before := map[worker.ID]uint64{}
	for _, w := range f.workers {
		s, _ := f.parts.Index.Stats(worker.Rank{ID: w.ID})
		before[w.ID] = s.Stored
	}
	id := f.ask(body).Decode.Rank.ID
	if tells {
		f.known(id, before[id]+lossPrompt)
	}
	return id
}

func (f *lossFleet) sim(id worker.ID) *enginesim.Sim { return f.sims[id-1] }

// occupy books so much on a rank that nobody picks it, until the function that it returns is called.
func (f *lossFleet) occupy(id worker.ID) (free func()) {
	var r load.Reservation
	params := picker.DefaultParams()
	params.BlockSize = lossPage
	require.NoError(f.t, f.parts.Book.Reserve(&load.Request{
		Key: worker.Key{Model: "m"}, Params: &params, Now: time.Now(), Pick: picker.Request{Role: worker.Aggregated, ISLTokens: 1 << 20},
	}, worker.Rank{ID: id}, 0, &r))
	return func() { r.Release(time.Now()) }
}

func (f *lossFleet) setAside(id worker.ID) {
	f.parts.Health.Report(worker.Rank{ID: id}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	require.True(f.t, f.parts.Health.Aside(worker.Rank{ID: id}))
}

// publish lists the workers anew, and waits until the plugin has them.
func (f *lossFleet) publish(ws []*worker.Worker) {
	f.t.Helper()
	was := f.parts.Board.Load()
	f.lists <- ws
	f.await("the workers to be published", func() bool { return f.parts.Board.Load() != was })
}

func flush(t *testing.T, s *enginesim.Sim) {
	t.Helper()
	resp, err := http.Post(s.URL()+"/flush_cache", "", bytes.NewReader(nil)) //nolint:noctx // to loopback
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 200, resp.StatusCode)
}

// post has an engine serve a request of which the plugin knows nothing.
func (f *lossFleet) post(id worker.ID, body string) {
	f.t.Helper()
	resp, err := http.Post(f.sim(id).URL()+"/v1/completions", "application/json", strings.NewReader(body)) //nolint:noctx // to loopback
	require.NoError(f.t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(f.t, err)
	require.NoError(f.t, resp.Body.Close())
	require.Equal(f.t, 200, resp.StatusCode)
}
