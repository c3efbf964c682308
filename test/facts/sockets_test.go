package facts_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/facts"
	"github.com/seed-60ae5743/baton/internal/register"
	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/internal/register/registertest"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// runs runs something that ends with its context until the test ends.
func runs(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func eventually(t *testing.T, ok func() bool, what string) {
	t.Helper()
	require.Eventually(t, ok, 60*time.Second, 5*time.Millisecond, what)
}

func startSim(t *testing.T, c enginesim.Config) (sim *enginesim.Sim, stop func()) {
	t.Helper()
	eventually(t, func() bool { // a port may be taken for a moment after its owner is gone
		var err error
		sim, err = enginesim.New(c)
		return err == nil
	}, "a simulated engine")
	return sim, runs(t, sim.Run)
}

// bare returns a worker of which nothing is known but its address.
func bare(t *testing.T, id worker.ID, at string) *worker.Worker {
	t.Helper()
	e, err := worker.ParseEndpoint(at)
	require.NoError(t, err)
	w := &worker.Worker{ID: id, Role: worker.Aggregated, Endpoint: e, DPSize: 1, FactsUnknown: true}
	require.NoError(t, w.Validate())
	return w
}

// listed is an inner source that lists workers once.
type listed []*worker.Worker

func (l listed) Run(ctx context.Context, sink discovery.Sink) error {
	var es []discovery.Entry
	for _, w := range l {
		es = append(es, discovery.Entry{Key: w.ID.String(), Worker: w})
	}
	if err := sink.Send(discovery.List{Revision: 1, Entries: es}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// viewOf runs a view of the source.
func viewOf(t *testing.T, c facts.Config) (*facts.Source, *discovery.View) {
	t.Helper()
	d := config.Default()
	c.Refresh, c.Timeout = d.Facts.Refresh, cmp.Or(c.Timeout, d.Facts.Timeout)
	s, err := facts.New(c)
	require.NoError(t, err)
	v, err := discovery.New(discovery.Config{Sources: []discovery.Named{{Name: "test", Source: s}}})
	require.NoError(t, err)
	runs(t, v.Run)
	return s, v
}

func known(v *discovery.View, id worker.ID) bool {
	w := v.Load().Worker(id)
	return w != nil && !w.FactsUnknown
}

// registry holds the record that register announces.
type registry struct{ rec atomic.Pointer[worker.Worker] }

func (r *registry) Announce(rec worker.Worker, _ uint64) { r.rec.Store(&rec) }
func (r *registry) Withdraw()                            { r.rec.Store(nil) }
func (r *registry) Sync(context.Context) error           { return nil }
func (r *registry) ID() worker.ID                        { return 1 }

// TestAWorkerIsWhatRegisterWouldAnnounce compares what is learned from outside with what
// `extproc register` announces of the same engine.
func TestAWorkerIsWhatRegisterWouldAnnounce(t *testing.T) {
	t.Parallel()
	for _, e := range []worker.Engine{worker.SGLang, worker.VLLM, worker.VLLMMooncake, worker.TensorRTLLM} {
		for _, role := range []worker.Role{worker.Prefill, worker.Decode, worker.Aggregated} {
			t.Run(fmt.Sprintf("%s %s", e, role), func(t *testing.T) {
				t.Parallel()
				sim, _ := startSim(t, enginesim.Config{
					Engine: e, Role: role, Models: []string{"m"}, Adapters: adapters(e), DPSize: 2, PageSize: 32, CapacityBlocks: 500, Topic: "kv",
				})
				w := bare(t, 1, sim.Addr())
				def := facts.Defaults{BlockSize: 32}
				if e == worker.VLLMMooncake {
					def.Engine = string(e)
					if b := sim.Identity().Bootstrap; b != nil {
						w.Bootstrap, w.Fixed = worker.Bootstrap{Host: b.Host, Port: uint16(b.Port)}, worker.FactBootstrap
					}
				}
				if e != worker.SGLang { // the others do not say their role
					w.Role, w.Fixed = role, w.Fixed|worker.FactRole
				}
				_, v := viewOf(t, facts.Config{Inner: listed{w}, Defaults: def})
				eventually(t, func() bool { return known(v, 1) }, "known")
				want := announced(t, sim, w, def)
				got := v.Load().Worker(1)
				require.True(t, got.Equal(&want), "register: %+v\nfrom outside: %+v", want, *got)
				require.Empty(t, v.Status().Problems)
			})
		}
	}
}

func adapters(e worker.Engine) []string {
	if e == worker.SGLang || e == worker.VLLM {
		return []string{"lora"}
	}
	return nil
}

// announced returns what register announces of the engine.
func announced(t *testing.T, sim *enginesim.Sim, w *worker.Worker, d facts.Defaults) worker.Worker {
	t.Helper()
	conf := registertest.Quick(sim.URL())
	conf.Engine.Kind, conf.Engine.Bootstrap = engine.Kind(d.Engine), w.Bootstrap.Port
	if w.Fixed.Has(worker.FactRole) {
		conf.Override.Role = w.Role
	}
	if sim.Identity().Engine == worker.TensorRTLLM {
		conf.Override.BlockSize = uint32(d.BlockSize)
	}
	reg := &registry{}
	r, err := register.New(conf, reg)
	require.NoError(t, err)
	runs(t, r.Run)
	t.Cleanup(r.Hurry) // before the wait of runs' own clean-up
	eventually(t, func() bool { return reg.rec.Load() != nil }, "announced")
	rec := *reg.rec.Load()
	rec.ID = w.ID
	return rec
}

// TestAWorkerThatIsRestartedAsAnotherModelIsThatModelsWorker at the same address: it is
// asked again as soon as somebody says that it may have begun anew.
func TestAWorkerThatIsRestartedAsAnotherModelIsThatModelsWorker(t *testing.T) {
	conf := enginesim.Config{Engine: worker.VLLM, Role: worker.Aggregated, Models: []string{"before"}, PageSize: 16}
	sim, kill := startSim(t, conf)
	s, v := viewOf(t, facts.Config{Inner: listed{bare(t, 1, sim.Addr())}, Retry: 10 * time.Millisecond})
	eventually(t, func() bool { return known(v, 1) }, "known")
	var mu sync.Mutex
	var left, joined int
	v.Subscribe(func(_, _ *worker.Snapshot, c discovery.Change) {
		mu.Lock()
		defer mu.Unlock()
		left, joined = left+len(c.Left), joined+len(c.Joined)
	})
	kill()
	s.Ask(1)
	eventually(t, func() bool { return s.Rows()[0].State == facts.Failing }, "it does not answer")
	require.Equal(t, []string{"before"}, v.Load().Worker(1).Models, "its facts are kept while nobody answers")
	eventually(t, func() bool {
		p := v.Status().Problems
		return len(p) == 1 && strings.Contains(p[0].Text, "it does not answer at "+sim.URL())
	}, "which is a problem")

	conf.Listen, conf.Models, conf.PageSize = sim.Addr(), []string{"after"}, 32
	startSim(t, conf)
	s.Ask(1)
	eventually(t, func() bool {
		w := v.Load().Worker(1) // there is none for a moment, between the process before and this one
		return w != nil && w.Models[0] == "after"
	}, "the other model")
	require.Equal(t, uint32(32), v.Load().Worker(1).BlockSize)
	eventually(t, func() bool { return len(v.Status().Problems) == 0 }, "no problem is left")
	eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return left == 1 && joined == 2
	}, "the process before was seen to leave")
}

// TestAThousandAddressesOfWhichAHundredHang: all others are known in time, nobody is asked
// beyond the bounds, and nothing waits for an answer.
func TestAThousandAddressesOfWhichAHundredHang(t *testing.T) {
	const all, hanging, atOnce = 1000, 100, 16
	silent := make(chan struct{})
	var ws listed
	for i := range all {
		l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.1:0", 50+i/250, i%250))
		if err != nil {
			t.Skipf("not every address of 127.0.0.0/8 is here: %v", err)
		}
		h := http.Handler(pages{})
		if i%(all/hanging) == 0 {
			h = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				select {
				case <-r.Context().Done():
				case <-silent:
				}
			})
		}
		srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		runs(t, func(context.Context) error { return srv.Serve(l) })
		t.Cleanup(func() { _ = srv.Close() }) // before the wait of runs' own clean-up
		ws = append(ws, bare(t, worker.ID(i+1), l.Addr().String()))
	}
	t.Cleanup(func() { close(silent) })
	reader := &counting{}
	s, v := viewOf(t, facts.Config{Inner: ws, Reader: reader, AtOnce: atOnce, PerSecond: 2000, Timeout: 500 * time.Millisecond, Retry: 50 * time.Millisecond})
	eventually(t, v.Ready, "ready")
	require.Len(t, v.Load().Workers(), all, "all are there at once")
	count := func(want facts.State) (n int) {
		for _, r := range s.Rows() {
			if r.State == want {
				n++
			}
		}
		return n
	}
	eventually(t, func() bool { return count(facts.Known) == all-hanging }, "all that answer are known")
	eventually(t, func() bool { return len(v.Status().Problems) == hanging }, "those that hang are told of")
	require.Equal(t, hanging, count(facts.Unknown))
	for _, p := range v.Status().Problems {
		require.Contains(t, p.Text, "expected an answer within facts.timeout")
	}
	require.LessOrEqual(t, reader.most.Load(), int64(atOnce))
	eventually(t, func() bool { return len(v.Load().Pool(worker.Key{Model: "m"}).Aggregated) >= all-hanging }, "they serve their model")
}

// counting is Engines, and counts the questions that run.
type counting struct {
	facts.Engines
	now, most atomic.Int64
}

func (c *counting) Read(ctx context.Context, t facts.Target, last worker.Engine) (facts.Reading, error) {
	now := c.now.Add(1)
	defer c.now.Add(-1)
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
	return c.Engines.Read(ctx, t, last)
}

// pages answers as a vLLM does.
type pages struct{}

func (pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/version":
		_, _ = w.Write([]byte(`{"version":"0.32.0"}`))
	case "/v1/models":
		_, _ = w.Write([]byte(`{"data":[{"id":"m","max_model_len":4096}]}`))
	case "/metrics":
		_, _ = w.Write([]byte("vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1\nprocess_start_time_seconds 12.5\n"))
	case "/kv_event_sources":
		_, _ = w.Write([]byte(`{}`))
	default:
		http.NotFound(w, r)
	}
}
