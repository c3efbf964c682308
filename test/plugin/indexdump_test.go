package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/plugin"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// simEngine is a simulated worker that can be restarted on its ports.
type simEngine struct {
	*enginesim.Sim
	t    *testing.T
	conf enginesim.Config
	rng  *rand.Rand
	stop func()
}

var engineRank = worker.Rank{ID: 7}

func startSim(t *testing.T, conf enginesim.Config) *simEngine {
	e := &simEngine{t: t, conf: conf, rng: rand.New(rand.NewPCG(1, 9))}
	e.start()
	at := func(addr string) int {
		_, port, err := net.SplitHostPort(addr)
		require.NoError(t, err)
		n, err := strconv.Atoi(port)
		require.NoError(t, err)
		return n
	}
	pub, replay := e.EventsAddr(0)
	e.conf.Listen, e.conf.KVEventsPort, e.conf.ReplayPort = e.Addr(), at(pub), at(replay)
	t.Cleanup(func() { e.stop() })
	return e
}

func (e *simEngine) start() {
	var err error
	require.Eventually(e.t, func() bool { // a port may be free a moment later
		e.Sim, err = enginesim.New(e.conf)
		return err == nil
	}, 20*time.Second, time.Millisecond, "%v", err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	sim := e.Sim
	go func() { ended <- sim.Run(ctx) }()
	e.stop = func() {
		cancel()
		if ended != nil {
			require.NoError(e.t, <-ended)
			ended = nil
		}
	}
}

func (e *simEngine) restart() {
	http.DefaultClient.CloseIdleConnections() // else a request is sent to the one that is gone
	e.stop()
	e.start()
}

// serve lets it serve requests, and evict for them.
func (e *simEngine) serve(requests int) {
	for range requests {
		var prompt strings.Builder
		fmt.Fprintf(&prompt, "topic %d", e.rng.IntN(4))
		for range e.rng.IntN(30) {
			fmt.Fprintf(&prompt, " w%d", e.rng.IntN(3))
		}
		e.post("/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":3}`, prompt.String()))
	}
}

func (e *simEngine) post(path, body string) {
	resp, err := http.Post(e.URL()+path, "application/json", strings.NewReader(body))
	require.NoError(e.t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	require.NoError(e.t, resp.Body.Close())
	require.Equal(e.t, http.StatusOK, resp.StatusCode)
}

func (e *simEngine) yaml() string {
	id := e.Identity()
	return fmt.Sprintf("workers:\n- {id: 7, role: aggregated, engine: sglang, models: [m], endpoint: %q, block_size: 4, "+
		"kv_events: {host: 127.0.0.1, port: %d, replay_port: %d}}\n", id.Endpoint, id.KVEvents.Port, id.KVEvents.ReplayPort)
}

// inStep waits until the plugin has heard all that the engine has to tell.
func (r *running) inStep(e *simEngine) (s shownRank) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		all := r.shown().Workers
		if len(all) != 1 || len(all[0].Ranks) != 1 || all[0].Ranks[0].Events == nil {
			return false
		}
		s = all[0].Ranks[0]
		want := e.State(false).Ranks[0].EventSeq
		return s.Events.State == "connected" && s.Events.Last != nil && *s.Events.Last+1 == want
	}, 20*time.Second, 5*time.Millisecond)
	return s
}

// requireCache compares the index with the engine's own cache.
func (r *running) requireCache(e *simEngine) {
	r.t.Helper()
	chains := e.chains()
	require.Equal(r.t, len(chains), r.shown().Workers[0].Ranks[0].IndexBlocks)
	for _, chain := range chains {
		hashes := make([]string, len(chain))
		for i, h := range chain {
			hashes[i] = strconv.FormatUint(uint64(h), 10)
		}
		query, err := json.Marshal(map[string]any{"hashes": hashes})
		require.NoError(r.t, err)
		code, text := r.ask(http.MethodPost, "/debug/index", bytes.NewReader(query))
		require.Equal(r.t, http.StatusOK, code, text)
		var a struct {
			Ranks []struct {
				Worker string `json:"worker_id"`
				Blocks int    `json:"tree_blocks"`
			} `json:"ranks"`
		}
		require.NoError(r.t, json.Unmarshal([]byte(text), &a))
		require.Len(r.t, a.Ranks, 1)
		require.Equal(r.t, "7", a.Ranks[0].Worker)
		require.Equal(r.t, len(chain), a.Ranks[0].Blocks)
	}
}

// chains are the hashes from the beginning to each block that the engine has cached.
func (e *simEngine) chains() (all [][]kvindex.LocalHash) {
	e.t.Helper()
	blocks := e.State(true).Ranks[0].Blocks
	require.NotEmpty(e.t, blocks)
	byHash := map[int64]enginesim.CachedBlock{}
	for _, b := range blocks {
		byHash[b.Hash] = b
	}
	for _, b := range blocks {
		var chain []kvindex.LocalHash
		for {
			chain = kvindex.AppendLocalHashes(chain, b.Tokens, 4, kvindex.Salt{}.Seed())
			if b.Parent == nil {
				break
			}
			b = byHash[*b.Parent]
		}
		slices.Reverse(chain)
		all = append(all, chain)
	}
	return all
}

// mirror is an index of the test's own, which follows the engine as the plugin's does: the
// invariants of the plugin's cannot be asked for from outside.
type mirror struct {
	tree  *kvindex.Tree
	slots *kvindex.Slots
	sub   *kvevents.Subscriber
	e     *simEngine
	stop  func()
}

// mirrored follows the engine until the test ends. It begins with a dump, if there is one.
func mirrored(e *simEngine, d *kvindex.Dump) *mirror {
	e.t.Helper()
	m := &mirror{slots: kvindex.NewSlots(), e: e}
	var err error
	m.tree, err = kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 8 << 20, NoHugePages: true}, m.slots)
	require.NoError(e.t, err)
	m.sub, err = kvevents.NewSubscriber(kvevents.Config{Index: m.tree})
	require.NoError(e.t, err)
	if d != nil {
		n, err := m.sub.Resume(d)
		require.NoError(e.t, err)
		require.Equal(e.t, 1, n)
	}
	id := e.Identity()
	at, err := worker.ParseEndpoint(id.Endpoint)
	require.NoError(e.t, err)
	snap, err := worker.NewSnapshot(1, []*worker.Worker{{
		ID: 7, Role: worker.Aggregated, Engine: worker.SGLang, Models: []string{"m"}, Endpoint: at, DPSize: 1, BlockSize: 4,
		KVEvents: worker.KVEvents{Host: "127.0.0.1", Port: uint16(id.KVEvents.Port), ReplayPort: uint16(id.KVEvents.ReplayPort)},
	}})
	require.NoError(e.t, err)
	m.sub.Update(snap)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.sub.Run(ctx) }()
	m.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(e.t, <-ended)
	})
	e.t.Cleanup(m.stop)
	return m
}

// inStep waits until the mirror has heard all that the engine has to tell.
func (m *mirror) inStep() (s kvevents.RankStatus) {
	m.e.t.Helper()
	require.Eventually(m.e.t, func() bool {
		all := m.sub.Status()
		if len(all) != 1 {
			return false
		}
		s = all[0]
		want := m.e.State(false).Ranks[0].EventSeq
		return (s.State == kvevents.StateConnected || s.State == kvevents.StateDegraded) && s.Seen && s.LastSeq+1 == want
	}, 20*time.Second, time.Millisecond)
	return s
}

// requireCache compares the index with the engine's own cache.
func (m *mirror) requireCache() {
	t := m.e.t
	t.Helper()
	chains := m.e.chains()
	st, _ := m.tree.Stats(engineRank)
	require.Equal(t, len(chains), st.Blocks)
	slot, ok := m.tree.Slot(engineRank)
	require.True(t, ok)
	var o kvindex.Overlap
	for _, chain := range chains {
		m.tree.Overlap(chain, &o)
		require.Equal(t, uint32(len(chain)), o.At(slot))
	}
}

// TestAfterARestartThePluginKnowsWhatTheEngineHolds restarts the plugin beside a
// simulated engine, which goes on meanwhile.
func TestAfterARestartThePluginKnowsWhatTheEngineHolds(t *testing.T) {
	for name, x := range map[string]struct {
		down         func(*simEngine)
		reset        string // "": none, what was dumped is taken
		mayBeLacking bool
	}{
		"it stored and evicted":       {down: func(e *simEngine) { e.serve(30) }},
		"it cleared its cache":        {down: func(e *simEngine) { e.serve(3); e.post("/flush_cache", ""); e.serve(5) }},
		"it restarted":                {down: func(e *simEngine) { e.restart(); e.serve(5) }, reset: "restarted"},
		"it restarted and is farther": {down: func(e *simEngine) { e.restart(); e.serve(70) }, reset: "restarted"},
		"it outran its replays":       {down: func(e *simEngine) { e.serve(300) }, reset: "lost", mayBeLacking: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := startSim(t, enginesim.Config{
				ID: 7, Role: worker.Aggregated, Models: []string{"m"}, PageSize: 4, CapacityBlocks: 60, ReplayBuffer: 200,
				PrefillPerToken: enginesim.None, DecodePerToken: enginesim.None,
			})
			dump := filepath.Join(t.TempDir(), "index.dump")
			config := "listen: 127.0.0.1:0\nindex: {dump: " + dump + ", max_bytes: 8388608}\n"
			first := startPlugin(t, config)
			first.writeWorkers(e.yaml())
			own := mirrored(e, nil)
			e.serve(1)
			first.inStep(e)
			own.inStep()
			e.serve(39)
			first.inStep(e)
			own.inStep()
			require.Contains(t, first.log.String(), "no dump of the index yet")
			first.requireCache(e)
			own.requireCache()
			require.NoError(t, own.tree.Check())
			own.stop()
			first.end()
			info, err := os.Stat(dump)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
			require.FileExists(t, dump+".paces")
			require.NoError(t, os.WriteFile(dump+".paces", []byte("{"), 0o600))

			x.down(e)
			kept, err := plugin.ReadDump(dump)
			require.NoError(t, err)
			second := startPlugin(t, config)
			second.writeWorkers(e.yaml())
			s := second.inStep(e)
			require.Contains(t, second.log.String(), "are learned anew")
			require.Equal(t, x.mayBeLacking, s.Events.Degraded, s.Events.Reason)
			own = mirrored(e, kept)
			status := own.inStep()
			if x.mayBeLacking {
				require.LessOrEqual(t, s.IndexBlocks, e.State(false).Ranks[0].CachedBlocks)
				require.Equal(t, kvevents.StateDegraded, status.State)
			} else {
				second.requireCache(e)
				require.Equal(t, kvevents.StateConnected, status.State)
				own.requireCache()
			}
			require.NoError(t, own.tree.Check())
			text := second.get("/metrics")
			require.Equal(t, x.reset == "", strings.Contains(text, "baton_kv_restores_total 1\n"))
			if x.reset != "" {
				require.NotContains(t, text, "baton_kv_restores_total 1")
				require.Contains(t, text, `baton_kv_resets_total{reason="`+x.reset+`"} 1`+"\n")
			}
		})
	}
}

func TestTheIndexIsDumpedEverySoOftenAndShown(t *testing.T) {
	e := startSim(t, enginesim.Config{ID: 7, Role: worker.Aggregated, Models: []string{"m"}, PageSize: 4, DecodePerToken: enginesim.None})
	path := filepath.Join(t.TempDir(), "index.dump")
	require.NoError(t, os.WriteFile(path, []byte("BATONKVInonsense"), 0o600))
	torn, others := filepath.Join(filepath.Dir(path), ".index.dump.123"), filepath.Join(filepath.Dir(path), ".index.dump.b.123")
	require.NoError(t, os.WriteFile(torn, nil, 0o600))
	require.NoError(t, os.WriteFile(others, nil, 0o600))
	r := startPlugin(t, "listen: 127.0.0.1:0\nindex: {dump: "+path+", dump_interval: 1ms, max_bytes: 8388608}\n")
	r.writeWorkers(e.yaml())
	e.serve(20)
	r.inStep(e)
	require.Contains(t, r.log.String(), "the index starts empty, since its dump cannot be used")
	require.NoFileExists(t, torn, "what a process that was killed has left")
	require.FileExists(t, others, "another plugin writes index.dump.b here")
	blocks := e.State(false).Ranks[0].CachedBlocks
	require.Eventually(t, func() bool {
		d, err := plugin.ReadDump(path)
		return err == nil && len(d.Ranks()) == 1 && d.Ranks()[0].Blocks == blocks
	}, 20*time.Second, time.Millisecond)
	require.Regexp(t, `baton_index_dumps_total\{outcome="ok"\} [1-9]`, r.get("/metrics"))

	// The same by the admin port.
	asked := filepath.Join(t.TempDir(), "asked")
	require.NoError(t, os.WriteFile(asked, []byte(r.get("/debug/index/dump")), 0o600))
	d, err := plugin.ReadDump(asked)
	require.NoError(t, err)
	require.Equal(t, blocks, d.Blocks())
	require.Len(t, d.Ranks(), 1)
	require.Equal(t, blocks, d.Ranks()[0].Blocks)
	at, err := kvevents.ReadPosition(d.Ranks()[0].Note)
	require.NoError(t, err)
	require.Equal(t, e.State(false).Ranks[0].EventSeq-1, at.Last)

	require.NoError(t, os.Rename(filepath.Dir(path), filepath.Dir(path)+".gone"))
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "the index could not be dumped") }, 20*time.Second, time.Millisecond)
	require.Regexp(t, `baton_index_dumps_total\{outcome="failed"\} [1-9]`, r.get("/metrics"))
}
