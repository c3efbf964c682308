//go:build real

package real

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

var gate = flag.Bool("gate", false, "real clients ask beside kills, stops, restarts and a rolling update: half an hour")

// station is workers of one engine, and how they serve.
type station struct {
	name, engine string
	engines      []string
	noMessages   bool // /v1/messages gets 501 there
}

// stations are the columns of TestClientsBesideFaults: two workers of each role, with the
// engines' own limits.
var stations = []station{
	{"vLLM alone", vllm, []string{"vllm-own-1", "vllm-own-2"}, false},
	{"SGLang alone", sglang, []string{"sglang-own-1", "sglang-own-2"}, false},
	{"vLLM apart", vllm, crews[vllm], false},
	{"SGLang apart", sglang, crews[sglang], true},
}

// TestClientsBesideFaults: clients of others ask without a pause, and a plain one at a steady
// rate, while workers are killed, stopped, drained and started again, and the plugin is
// replaced. While a worker of each role is well no request fails before its answer has begun,
// and no answer that has begun is cut, but by the death of the decode worker that makes it.
func TestClientsBesideFaults(t *testing.T) {
	if !*gate {
		t.Skip("make gate")
	}
	for _, at := range stations {
		t.Run(at.name, func(t *testing.T) {
			b := startBeside(t, at)
			for _, p := range []struct {
				what string
				do   func() string
			}{
				{"nothing is done to them", b.calm},
				{"one of each role is killed, and back", b.kill},
				{fmt.Sprintf("one of each role is stopped for %s", stopFor), b.stop},
				{"one of each role is drained, stopped by SIGTERM, and back", b.restart},
				{"a rolling update: so each of the others in turn, and the plugin twice", b.roll},
			} {
				began := time.Now()
				t.Run(p.what, func(t *testing.T) { b.phase(t, p.what, p.do) })
				if !b.intact {
					t.Fatalf("%s: the workers are not as they were", p.what)
				}
				t.Logf("%s: %s", p.what, time.Since(began).Round(time.Second))
			}
		})
	}
}

// beside is a station with Baton before it.
type beside struct {
	*scene
	at        station
	root      string
	registers map[*Engine]*stack.Register
	options   stack.PluginOptions // of each plugin
	earlier   []string            // the logs of plugins that were replaced
	intact    bool                // the last phase has left the workers as they were
	rolled    []*Engine           // that have been drained and started again
	fresh     float64             // fresh attempts of plugins that were replaced, of the phase
	now       atomic.Pointer[stack.Plugin]

	mu     sync.Mutex
	told   map[string]bool // the moves that have been read
	moves  []move
	ids    map[string]string  // the endpoint of each worker, by its id
	well   map[string]bool    // the endpoints in service and not doubted
	ill    map[string][]spell // by endpoint: something is done to it
	late   map[string][]spell // by endpoint: its page does not come in lateAfter
	killed map[string]bool    // ids
	asked  []*seenRequest     // of the phase
}

// spell is a time in which something is done to a worker. It has no end yet, or to is set.
type spell struct{ from, to time.Time }

func startBeside(t *testing.T, at station) *beside {
	t.Helper()
	root, err := stack.Root()
	require.NoError(t, err)
	b := &beside{
		scene: &scene{t: t, engines: engines.use(t, at.engines...)}, at: at, root: root, registers: map[*Engine]*stack.Register{},
		told: map[string]bool{}, ids: map[string]string{}, ill: map[string][]spell{}, late: map[string][]spell{}, killed: map[string]bool{},
	}
	require.NoError(t, forgetRows(root, at.name))
	yield(t, b.engines...)
	ctx, cancel := context.WithCancel(context.Background())
	dir := t.TempDir()
	b.options = stack.PluginOptions{Dir: dir, Config: "routing: {debug_header: true}\n", Passed: heldSocket(t, filepath.Join(dir, "extproc.sock"))}
	b.etcd, err = stack.StartEtcd(ctx, stack.EtcdOptions{BinDir: binDir, Dir: filepath.Join(dir, "etcd")})
	require.NoError(t, err)
	for _, e := range b.engines {
		b.registers[e] = b.register(engines.ctx, e)
	}
	b.newPlugin()
	b.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: envoyPath, Dir: dir, Params: envoy.Params{PluginSocket: b.plugin.Socket}})
	require.NoError(t, err)
	b.awaitPlugin()
	var looks sync.WaitGroup
	looks.Go(func() { every(ctx, 200*time.Millisecond, b.look) })
	for _, e := range b.engines {
		looks.Go(func() { every(ctx, 500*time.Millisecond, func() { b.askPage(ctx, endpointOf(e)) }) })
	}
	t.Cleanup(func() {
		cancel()
		looks.Wait()
		if t.Failed() {
			b.keepLogs()
		}
		_ = b.plugin.Kill()
		for _, r := range b.registers {
			_ = r.Kill()
		}
	})
	return b
}

// heldSocket is a socket that is held while plugins come and go, as systemd does for a socket
// unit.
func heldSocket(t *testing.T, name string) *os.File {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	require.NoError(t, err)
	require.NoError(t, l.Close())
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func (b *beside) newPlugin() {
	b.t.Helper()
	b.startPlugin(engines.ctx, b.options)
	b.plugin.KeepLog(64 << 20)
	b.now.Store(b.plugin)
}

// keepLogs writes what all have said below .run: it is too much for a test's output.
func (b *beside) keepLogs() {
	dir := filepath.Join(b.root, ".run", "gate", strings.ReplaceAll(b.at.name, " ", "-"))
	logs := map[string]string{"plugin": strings.Join(append(b.earlier, b.plugin.Log()), "\n--- replaced ---\n")}
	for _, e := range b.engines {
		logs[e.Name], logs["register-"+e.Name] = e.Log(), b.registers[e].Log()
	}
	err := os.MkdirAll(dir, 0o700)
	for name, text := range logs {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".log"), []byte(text), 0o600)
		}
	}
	b.t.Logf("the logs are in %s: %v", dir, err)
}

// look reads what the plugin says of its workers.
func (b *beside) look() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var s standing
	page, err := b.now.Load().Page(ctx, "/debug/state")
	if err != nil || json.Unmarshal([]byte(page), &s) != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.moves = append(b.moves, s.moves(b.told)...)
	b.well = map[string]bool{}
	for _, x := range s.Workers {
		b.ids[x.ID] = x.Endpoint
		if x.State == "healthy" && !strings.HasPrefix(x.Reason, "doubted") {
			b.well[x.Endpoint] = true
		}
	}
}

// inService reports whether the worker is in service and not doubted.
func (b *beside) inService(e *Engine) bool {
	b.look()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.well[endpointOf(e)]
}

func (b *beside) awaitService(es ...*Engine) {
	b.t.Helper()
	for _, e := range es {
		b.await(e.Name+" to be in service", func() bool { return b.inService(e) })
	}
}

// fallIll notes that something is done to a worker from now on.
func (b *beside) fallIll(e *Engine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ill[endpointOf(e)] = append(b.ill[endpointOf(e)], spell{from: time.Now()})
}

// recover waits until the worker is in service again.
func (b *beside) recover(es ...*Engine) {
	b.t.Helper()
	b.awaitService(es...)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range es {
		s := b.ill[endpointOf(e)]
		s[len(s)-1].to = time.Now()
	}
}

// lateAfter is how late the page of a worker comes that has not the CPU to be well: a quiet one
// answers within milliseconds.
const lateAfter = time.Second

// askPage asks a worker for a page, and notes if it is late.
func (b *beside) askPage(ctx context.Context, endpoint string) {
	began := time.Now()
	if get(ctx, "http://"+endpoint+"/v1/models") && time.Since(began) < lateAfter {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.late[endpoint] = append(b.late[endpoint], spell{began, time.Now().Add(lateAfter)})
}

// during reports whether a moment is within one of the spells.
func during(spells []spell, at time.Time) bool {
	return slices.ContainsFunc(spells, func(s spell) bool { return !at.Before(s.from) && (s.to.IsZero() || !at.After(s.to)) })
}

// oneOfEach returns the last engine of each role.
func (b *beside) oneOfEach() (out []*Engine) {
	for _, role := range []worker.Role{worker.Prefill, worker.Decode, worker.Aggregated} {
		for _, e := range slices.Backward(b.engines) {
			if e.Role == role {
				out = append(out, e)
				break
			}
		}
	}
	return out
}

func (b *beside) calm() string {
	b.servedMore(3)
	if !b.at.noMessages {
		return ""
	}
	a := b.ask("/v1/messages", fields{"model": b.engines[0].Served, "max_tokens": 8, "messages": []fields{message("user", "hello")}})
	require.Equal(b.t, http.StatusNotImplemented, a.status, a.body)
	return "Anthropic's client is not among them, since messages get 501 here"
}

// kill: first one of prefill, then one of decode, and both come back together. A worker that
// answers is killed in the midst of a stream.
func (b *beside) kill() string {
	es := b.oneOfEach()
	for i, e := range es {
		end := func() {}
		if e.Role != worker.Prefill {
			e, end = b.openStream(2000)
			es[i] = e
		}
		b.mu.Lock()
		for id, at := range b.ids {
			if at == endpointOf(e) {
				b.killed[id] = true
			}
		}
		b.mu.Unlock()
		b.fallIll(e)
		require.NoError(b.t, e.Kill())
		end()
		b.await("the plugin to know that "+e.Name+" is gone", func() bool { return !b.inService(e) })
		b.servedMore(2)
	}
	b.startAgain(es...)
	return ""
}

// startAgain starts engines together.
func (b *beside) startAgain(es ...*Engine) {
	b.t.Helper()
	began := time.Now()
	var g errgroup.Group
	for _, e := range es {
		g.Go(func() error { return e.Restart(engines.ctx) })
	}
	require.NoError(b.t, g.Wait())
	yield(b.t, es...)
	for _, e := range es {
		if !b.registers[e].Alive() {
			b.registers[e] = b.register(engines.ctx, e)
		}
	}
	b.recover(es...)
	b.t.Logf("%d are back after %s", len(es), time.Since(began).Round(time.Second))
}

// yield has engines that serve go behind all else: idle engines that wait for KV spin, and a
// start beside them would take minutes.
func yield(t *testing.T, es ...*Engine) {
	t.Helper()
	own, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0) // the kernel tells 20 less what nice tells
	require.NoError(t, err)
	for _, e := range es {
		require.NoError(t, syscall.Setpriority(syscall.PRIO_PGRP, e.PID(), min(19, 20-own+5)))
	}
}

// stop: one after the other does nothing for a while, a worker that answers in the midst of a
// stream, which goes on afterwards.
func (b *beside) stop() string {
	for _, e := range b.oneOfEach() {
		end := func() {}
		if e.Role != worker.Prefill {
			e, end = b.openStream(200)
		}
		b.fallIll(e)
		require.NoError(b.t, e.Pause())
		<-time.After(stopFor)
		require.NoError(b.t, e.Resume())
		b.recover(e)
		b.servedMore(2)
		end()
	}
	return ""
}

// restart: one of each role leaves as it is meant to, a worker that answers in the midst of a
// stream, which it completes; then they come back.
func (b *beside) restart() string {
	var took []string
	es := b.oneOfEach()
	for i, e := range es {
		end := func() {}
		if e.Role != worker.Prefill {
			e, end = b.openStream(200)
			es[i] = e
		}
		took = append(took, b.takeOut(e))
		end()
	}
	b.startAgain(es...)
	return strings.Join(took, ", ")
}

// takeOut drains a worker by its register, and then ends the engine by SIGTERM.
func (b *beside) takeOut(e *Engine) string {
	b.t.Helper()
	b.fallIll(e)
	began := time.Now()
	r := b.registers[e]
	require.NoError(b.t, r.Signal(syscall.SIGTERM))
	b.await(r.Name+" to have drained", func() bool { return !r.Alive() })
	require.NoError(b.t, r.Err(), "it ends with exit code 0")
	drained := time.Since(began)
	b.rolled = append(b.rolled, e)
	require.NoError(b.t, syscall.Kill(e.PID(), syscall.SIGTERM)) // the engine itself tells its processes
	b.await(e.Name+" to end by SIGTERM", func() bool { return !e.Alive() })
	return fmt.Sprintf("%s drains for %s and ends within %s", e.Role, drained.Round(100*time.Millisecond), (time.Since(began) - drained).Round(100*time.Millisecond))
}

// roll: the plugin, then each worker that has not been started again, in turn; the plugin once
// more while the first one is away.
func (b *beside) roll() string {
	away := []time.Duration{b.replacePlugin()}
	for _, e := range b.engines {
		if slices.Contains(b.rolled, e) {
			continue
		}
		b.takeOut(e)
		if len(away) == 1 {
			away = append(away, b.replacePlugin())
		}
		b.startAgain(e)
		b.servedMore(1)
	}
	require.ElementsMatch(b.t, b.engines, b.rolled)
	return fmt.Sprintf("no plugin takes requests for %s and %s", away[0], away[1])
}

// replacePlugin ends the plugin by SIGTERM and starts another one, and returns for how long
// none took requests.
func (b *beside) replacePlugin() time.Duration {
	b.t.Helper()
	b.look()
	b.fresh += b.freshPicks()
	old := b.plugin
	require.NoError(b.t, old.Signal(syscall.SIGTERM))
	b.await("the plugin to end", func() bool { return !old.Alive() })
	began := time.Now()
	require.NoError(b.t, old.Err(), "it ends with exit code 0")
	b.earlier = append(b.earlier, old.Log())
	<-time.After(100 * time.Millisecond) // RestartSec
	b.newPlugin()
	b.await("the plugin to take requests", func() bool { return strings.Contains(b.plugin.Log(), "takes requests") })
	return time.Since(began).Round(10 * time.Millisecond)
}

func (b *beside) freshPicks() float64 { return max(0, b.metric("baton_fresh_picks_total")) }
