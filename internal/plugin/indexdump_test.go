package plugin

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/telemetry"
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
func (r *running) inStep(e *simEngine) kvevents.RankStatus {
	r.t.Helper()
	var s kvevents.RankStatus
	require.Eventually(r.t, func() bool {
		all := r.plugin.events.Status()
		if len(all) != 1 {
			return false
		}
		s = all[0]
		want := e.State(false).Ranks[0].EventSeq
		return (s.State == kvevents.StateConnected || s.State == kvevents.StateDegraded) && s.Seen && s.LastSeq+1 == want
	}, 20*time.Second, time.Millisecond)
	return s
}

// requireCache compares the index with the engine's own cache.
func (r *running) requireCache(e *simEngine) {
	r.t.Helper()
	blocks := e.State(true).Ranks[0].Blocks
	require.NotEmpty(r.t, blocks)
	byHash := map[int64]enginesim.CachedBlock{}
	for _, b := range blocks {
		byHash[b.Hash] = b
	}
	st, _ := r.plugin.index.Stats(engineRank)
	require.Equal(r.t, len(blocks), st.Blocks)
	slot, ok := r.plugin.index.Slot(engineRank)
	require.True(r.t, ok)
	var o kvindex.Overlap
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
		r.plugin.index.Overlap(chain, &o)
		require.Equal(r.t, uint32(len(chain)), o.At(slot))
	}
	require.NoError(r.t, r.plugin.index.(*kvindex.Tree).Check())
}

// end stops the plugin as SIGTERM does.
func (r *running) end() {
	r.t.Helper()
	r.stop()
	err := <-r.ended
	require.NoError(r.t, err)
	r.ended <- err // for the cleanup
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
			config := "listen: 127.0.0.1:0\nindex: {dump: " + dump + ", max_bytes: 8388608, huge_pages: false}\n"
			first := startPlugin(t, config)
			first.writeWorkers(e.yaml())
			e.serve(1)
			first.inStep(e)
			e.serve(39)
			first.inStep(e)
			require.Contains(t, first.log.String(), "no dump of the index yet")
			first.requireCache(e)
			first.end()
			info, err := os.Stat(dump)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
			require.FileExists(t, dump+pacesSuffix)
			require.NoError(t, os.WriteFile(dump+pacesSuffix, []byte("{"), 0o600))

			x.down(e)
			second := startPlugin(t, config)
			second.writeWorkers(e.yaml())
			s := second.inStep(e)
			require.Contains(t, second.log.String(), "are learned anew")
			if x.mayBeLacking {
				require.Equal(t, kvevents.StateDegraded, s.State)
				require.LessOrEqual(t, s.Blocks, e.State(false).Ranks[0].CachedBlocks)
			} else {
				require.Equal(t, kvevents.StateConnected, s.State)
				second.requireCache(e)
			}
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
	r := startPlugin(t, "listen: 127.0.0.1:0\nindex: {dump: "+path+", dump_interval: 1ms, max_bytes: 8388608, huge_pages: false}\n")
	r.writeWorkers(e.yaml())
	e.serve(20)
	r.inStep(e)
	require.Contains(t, r.log.String(), "the index starts empty, since its dump cannot be used")
	require.NoFileExists(t, torn, "what a process that was killed has left")
	require.FileExists(t, others, "another plugin writes index.dump.b here")
	blocks := e.State(false).Ranks[0].CachedBlocks
	require.Eventually(t, func() bool {
		d, err := ReadDump(path)
		return err == nil && len(d.Ranks()) == 1 && d.Ranks()[0].Blocks == blocks
	}, 20*time.Second, time.Millisecond)
	require.Regexp(t, `baton_index_dumps_total\{outcome="ok"\} [1-9]`, r.get("/metrics"))

	// The same by the admin port.
	asked := filepath.Join(t.TempDir(), "asked")
	require.NoError(t, os.WriteFile(asked, []byte(r.get("/debug/index/dump")), 0o600))
	d, err := ReadDump(asked)
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

// TestASlowReaderOfADumpDoesNotStretchThePauseBetweenDumps: the pause after a
// dump is a multiple of its own length, which the wait for a reader is no part of.
func TestASlowReaderOfADumpDoesNotStretchThePauseBetweenDumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, err := kvevents.NewSubscriber(kvevents.Config{Index: newTestTree(t)})
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "index.dump")
		p := &plugin{
			cfg: config.Config{Index: config.IndexConfig{Dump: path, DumpInterval: time.Minute}}, events: events, dumping: make(chan struct{}, 1), server: new(extproc.Server),
			log: slog.New(slog.DiscardHandler), tele: &telemetry.Telemetry{Instruments: new(telemetry.Instruments)},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- p.keepIndex(ctx) }()
		<-time.After(30 * time.Second)
		slow, out := io.Pipe()
		defer slow.Close() //nolint:errcheck // it never fails
		go func() { ended <- p.dumpIndex(out) }()
		<-time.After(90 * time.Second)
		require.NoFileExists(t, path, "one at a time")
		go func() { _, _ = io.Copy(io.Discard, slow) }()
		synctest.Wait()
		require.NoError(t, <-ended)
		require.FileExists(t, path)
		require.NoError(t, os.Remove(path))
		<-time.After(time.Minute)
		synctest.Wait()
		require.FileExists(t, path)
		cancel()
		require.NoError(t, <-ended)
	})
}

func newTestTree(t *testing.T) *kvindex.Tree {
	tree, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, kvindex.NewSlots())
	require.NoError(t, err)
	return tree
}
