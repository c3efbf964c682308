package facts_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/facts"
	"github.com/seed-60ae5743/baton/internal/register"
	"github.com/seed-60ae5743/baton/internal/register/registertest"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// launch is an engine as people start it. Sources, vLLM 0.32.0: v1/engine/core_client.py
// (engine_ranks_managed, _apply_ready_response), v1/core/sched/scheduler.py,
// distributed/kv_events.py (offset_endpoint_port, _bind), v1/metrics/loggers.py
// (log_metrics_info); SGLang 0.5.23: srt/runtime_context.py
// (describe_kv_events_publisher), srt/arg_groups/overrides.py (kv_event_block_size_of),
// srt/disaggregation/kv_events.py (select_kv_publisher_dp_rank, parse_advertisable_tcp).
type launch struct {
	flags string // of the engine, as they are written
	sim   enginesim.Config
	over  func(*register.Override, *enginesim.Sim) // flags of register
	file  func(*worker.Worker, *enginesim.Sim)     // keys of the workers file
	rank  worker.DPRank                            // that the engine gives its first rank
	block uint32                                   // tokens; 0: 16
	eagle bool
	mute  bool   // no events are read
	says  string // the problem, of both ways

}

func launches() []launch {
	sg := func(c enginesim.Config) enginesim.Config {
		c.Engine, c.PageSize = worker.SGLang, max(c.PageSize, 16)
		return c
	}
	vl := func(c enginesim.Config) enginesim.Config {
		c.Engine, c.PageSize = worker.VLLM, max(c.PageSize, 16)
		return c
	}
	nodes := []string{"127.0.0.1", "127.0.0.2"}
	spread := func(o *register.Override, _ *enginesim.Sim) { o.KVHosts = nodes }
	listedPlaces := func(w *worker.Worker, s *enginesim.Sim) {
		ev := s.Identity().KVEvents
		w.KVEvents = worker.KVEvents{Host: nodes[0], Port: uint16(ev.Port)}.Placed(4, nodes...) //nolint:gosec // a port
		w.Fixed |= worker.FactKVEvents
	}
	return []launch{
		{flags: "sglang --dp-size 2", sim: sg(enginesim.Config{DPSize: 2})},
		{
			flags: "sglang --nnodes 2 --tp-size 8 --dp-size 4 --enable-dp-attention, register without hosts",
			sim:   sg(enginesim.Config{DPSize: 4, EventHosts: nodes}), mute: true,
			says: "its 4 ranks are on 2 nodes (--nnodes), each publishes its KV events on its own node, and no page names these",
		},
		{
			flags: "sglang --nnodes 2 --tp-size 8 --dp-size 4 --enable-dp-attention",
			sim:   sg(enginesim.Config{DPSize: 4, EventHosts: nodes, ReplayPort: enginesim.Off}), over: spread, file: listedPlaces,
		},
		{flags: "sglang --dcp-size 2 --page-size 16", sim: sg(enginesim.Config{PageSize: 32, ContextParallel: 2}), block: 32},
		{
			flags: `sglang --kv-events-config {"publisher":"zmq","endpoint":"tcp://*:0"}`, sim: sg(enginesim.Config{SystemPorts: true}), mute: true,
			says: `"endpoint":"tcp://*:PORT" with a port above 0 in the engine's --kv-events-config`,
		},
		{flags: "sglang --speculative-algorithm EAGLE3", sim: sg(enginesim.Config{Speculative: "EAGLE3"}), eagle: true, mute: true},
		{flags: "sglang --speculative-algorithm NGRAM", sim: sg(enginesim.Config{Speculative: "NGRAM"})},
		{flags: "vllm --data-parallel-size 2 (internal balancing)", sim: vl(enginesim.Config{DPSize: 2})},
		{flags: "vllm --data-parallel-size 4 --data-parallel-rank 3 (external balancing)", sim: vl(enginesim.Config{FirstRank: 3}), rank: 3},
		{
			flags: "vllm --data-parallel-size 4 --data-parallel-start-rank 2 --data-parallel-size-local 2 (hybrid balancing)",
			sim:   vl(enginesim.Config{FirstRank: 2, DPSize: 2}), rank: 2,
		},
		{
			flags: "vllm 0.29 --data-parallel-size 4 --data-parallel-rank 3, the port by flag", rank: 3,
			sim:  vl(enginesim.Config{FirstRank: 3, OlderPages: true}),
			over: func(o *register.Override, s *enginesim.Sim) { o.KVPort = uint16(s.Identity().KVEvents.Port) }, //nolint:gosec // a port
			file: func(w *worker.Worker, s *enginesim.Sim) {
				w.KVEvents, w.Fixed = worker.KVEvents{Host: "127.0.0.1", Port: uint16(s.Identity().KVEvents.Port)}, w.Fixed|worker.FactKVEvents //nolint:gosec // a port
			},
		},
		{flags: "vllm --decode-context-parallel-size 2", sim: vl(enginesim.Config{PageSize: 32, ContextParallel: 2}), block: 32},
		{
			flags: "vllm 0.29 --decode-context-parallel-size 2, --block-size and --capacity-blocks by flag", block: 32,
			sim: vl(enginesim.Config{PageSize: 32, ContextParallel: 2, OlderPages: true}),
			over: func(o *register.Override, s *enginesim.Sim) {
				o.BlockSize, o.CapacityBlocks, o.KVPort = 32, 500, uint16(s.Identity().KVEvents.Port) //nolint:gosec // a port
			},
			file: func(w *worker.Worker, s *enginesim.Sim) {
				w.KVEvents = worker.KVEvents{Host: "127.0.0.1", Port: uint16(s.Identity().KVEvents.Port)} //nolint:gosec // a port
				w.BlockSize, w.CapacityBlocks = 32, 500
				w.Fixed |= worker.FactKVEvents | worker.FactBlockSize | worker.FactCapacityBlocks
			},
			says: "block_size: discovery says 32, its engine says 16",
		},
		{
			flags: `vllm --data-parallel-size 3, ports that the system gives: "endpoint":"tcp://*:0"`,
			sim:   vl(enginesim.Config{DPSize: 3, SystemPorts: true, ReplayPort: enginesim.Off}),
		},
		{
			flags: `vllm --data-parallel-size 2, a rank on each of 2 nodes, "endpoint":"tcp://*:0"`,
			sim:   vl(enginesim.Config{DPSize: 2, SystemPorts: true, EventHosts: nodes, ReplayPort: enginesim.Off}),
		},
	}
}

// TestEnginesAsPeopleStartThem: what register announces and what is learned from outside
// are one record, and who follows it gets the events of each rank; or the problem names the
// flag.
func TestEnginesAsPeopleStartThem(t *testing.T) {
	t.Parallel()
	for _, c := range launches() {
		t.Run(c.flags, func(t *testing.T) {
			t.Parallel()
			c.sim.Role, c.sim.Models, c.sim.CapacityBlocks = worker.Aggregated, []string{"m"}, 500
			sim, _ := startSim(t, c.sim)
			w := bare(t, 1, sim.Addr())
			var over register.Override
			if c.over != nil {
				c.over(&over, sim)
				c.file(w, sim)
			}
			rec, said := registered(t, sim, over)
			_, v := viewOf(t, facts.Config{Inner: listed{w}})
			eventually(t, func() bool { return known(v, 1) }, "known")
			got := v.Load().Worker(1)
			require.True(t, got.Equal(&rec), "register: %+v\nfrom outside: %+v", rec, *got)
			require.Equal(t, c.rank, rec.EngineRank)
			require.Equal(t, max(c.block, 16), rec.BlockSize)
			require.Equal(t, uint64(500), rec.CapacityBlocks)
			require.Equal(t, c.eagle, rec.Eagle)
			if c.says != "" {
				require.Contains(t, fmt.Sprint(v.Status().Problems), c.says)
				if c.over == nil {
					require.Contains(t, strings.ReplaceAll(said(), `\"`, `"`), c.says)
				}
			} else {
				require.Empty(t, v.Status().Problems)
			}
			if !c.mute {
				eachRankTells(t, sim, &rec)
			}
		})
	}
}

// TestEventsOfAnotherBlockSizeNameIt: no page of an older vLLM says how many devices share
// a block, and the events do.
func TestEventsOfAnotherBlockSizeNameIt(t *testing.T) {
	t.Parallel()
	sim, _ := startSim(t, enginesim.Config{
		Engine: worker.VLLM, Role: worker.Aggregated, Models: []string{"m"}, PageSize: 32, ContextParallel: 2, OlderPages: true,
	})
	rec, _ := registered(t, sim, register.Override{KVPort: uint16(sim.Identity().KVEvents.Port)}) //nolint:gosec // a port
	require.Equal(t, uint32(16), rec.BlockSize)
	sub, ask := follow(t, sim, &rec)
	ask(0, 70)
	eventually(t, func() bool { return sub.Status()[0].Told.BlockSize == 32 }, "the size that the events have")
	worst, n := sub.Status()[0].Missing.Worst()
	require.Positive(t, n)
	require.Equal(t, kvevents.BlockSizeMismatch, worst)
}

// TestPrefillWorkersOfOneHostHaveTheirOwnBootstrapPorts, as several servers of SGLang with
// --disaggregation-bootstrap-port each.
func TestPrefillWorkersOfOneHostHaveTheirOwnBootstrapPorts(t *testing.T) {
	t.Parallel()
	seen := map[uint16]bool{}
	for range 2 {
		sim, _ := startSim(t, enginesim.Config{Engine: worker.SGLang, Role: worker.Prefill, Models: []string{"m"}, DPSize: 2})
		rec, _ := registered(t, sim, register.Override{})
		_, v := viewOf(t, facts.Config{Inner: listed{bare(t, 1, sim.Addr())}})
		eventually(t, func() bool { return known(v, 1) }, "known")
		require.Equal(t, rec.Bootstrap, v.Load().Worker(1).Bootstrap)
		require.Equal(t, sim.Identity().Bootstrap.Port, int(rec.Bootstrap.Port))
		seen[rec.Bootstrap.Port] = true
	}
	require.Len(t, seen, 2)
}

// registered returns what register announces of the engine, and its log.
func registered(t *testing.T, sim *enginesim.Sim, over register.Override) (worker.Worker, func() string) {
	t.Helper()
	var mu sync.Mutex
	var log bytes.Buffer
	write := writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(p)
	})
	reg := &registry{}
	conf := registertest.Quick(sim.URL())
	conf.Override, conf.Logger = over, slog.New(slog.NewTextHandler(write, nil))
	r, err := register.New(conf, reg)
	require.NoError(t, err)
	runs(t, r.Run)
	t.Cleanup(r.Hurry)
	eventually(t, func() bool { return reg.rec.Load() != nil }, "announced")
	rec := *reg.rec.Load()
	rec.ID = 1
	return rec, func() string {
		mu.Lock()
		defer mu.Unlock()
		return log.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// follow follows the record's events until each rank is connected. ask has a rank compute
// a prompt of so many words.
func follow(t *testing.T, sim *enginesim.Sim, w *worker.Worker) (sub *kvevents.Subscriber, ask func(rank uint32, words int)) {
	t.Helper()
	index, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 4 << 20, NoHugePages: true}, kvindex.NewSlots())
	require.NoError(t, err)
	sub, err = kvevents.NewSubscriber(kvevents.Config{Index: index})
	require.NoError(t, err)
	snap, err := worker.NewSnapshot(1, []*worker.Worker{w})
	require.NoError(t, err)
	sub.Update(snap)
	runs(t, sub.Run)
	eventually(t, func() bool {
		ranks := sub.Status()
		for _, r := range ranks {
			if r.State < kvevents.StateConnected {
				return false
			}
		}
		return len(ranks) == int(w.DPSize)
	}, "each rank is followed")
	return sub, func(rank uint32, words int) {
		t.Helper()
		prompt := strings.TrimSpace(strings.Repeat(fmt.Sprintf("w%d ", rank), words))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+sim.Addr()+"/v1/completions",
			strings.NewReader(fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":1}`, prompt)))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(int(rank)))
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode)
	}
}

// eachRankTells sends a prompt to one rank after the other, and requires that the blocks
// are found at this rank.
func eachRankTells(t *testing.T, sim *enginesim.Sim, w *worker.Worker) {
	t.Helper()
	sub, ask := follow(t, sim, w)
	for dp := range w.DPSize {
		ask(dp, int((dp+2)*w.BlockSize+3)) // a block more at each rank, so that none is taken for another
	}
	eventually(t, func() bool {
		for _, r := range sub.Status() {
			if r.Blocks != int(r.Rank.DPRank)+2 || r.Missing != (kvevents.Refusals{}) {
				return false
			}
		}
		return true
	}, "each rank's blocks, and no refusals")
}
