//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"io"
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
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/seed-60ae5743/baton/test/stack"
)

// steady sends requests one after the other from two clients until the function
// it returns is called, which gives them all.
func (f *etcdFleet) steady() (stop func() []sent) {
	done := make(chan struct{})
	var mu sync.Mutex
	var all []sent
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(10 * time.Millisecond):
				}
				s := f.ask()
				mu.Lock()
				all = append(all, s)
				mu.Unlock()
			}
		})
	}
	return func() []sent {
		close(done)
		wg.Wait()
		return all
	}
}

func (f *etcdFleet) requireAllServed(all []sent, when string) {
	f.t.Helper()
	require.NotEmpty(f.t, all)
	for _, s := range all {
		f.requireServed(s, when)
	}
}

func ids(s seen) []string {
	out := make([]string, 0, len(s.Workers))
	for _, w := range s.Workers {
		out = append(out, w.ID)
	}
	slices.Sort(out)
	return out
}

func (f *etcdFleet) awaitStale(p *stack.Plugin, want bool) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return look(f.t, p).View.Stale == want }, 15*time.Second, 20*time.Millisecond, "stale: %t", want)
}

// TestEtcdIsStoppedAndComesBack is docs/behaviour.md#store-away: nothing fails, the
// fleet stays known and marked stale; a plugin that is started meanwhile serves what
// was known.
func TestEtcdIsStoppedAndComesBack(t *testing.T) {
	t.Parallel()
	for _, wiped := range []bool{false, true} {
		t.Run(fmt.Sprintf("its data lost %t", wiped), func(t *testing.T) {
			t.Parallel()
			f := newEtcdFleet(t, wiped, "", "--discovery-cache", filepath.Join(t.TempDir(), "last.yaml"))
			f.pods("prefill", 2)
			f.pods("decode", 2)
			before := look(t, f.plugin)
			stop := f.steady()
			require.NoError(t, f.etcd.Kill())
			<-f.etcd.Done()
			f.awaitStale(f.plugin, true)
			require.Equal(t, stateLines(before), stateLines(look(t, f.plugin)))
			require.NotZero(t, f.metric("baton_view_stale"))

			second := f.newPlugin(t.TempDir(), false)
			require.True(t, look(t, second).View.Stale)
			require.Equal(t, stateLines(before), stateLines(look(t, second)))
			stopSecond(t, second)

			<-time.After(outage)
			if wiped {
				require.NoError(t, os.RemoveAll(f.etcd.Dir))
			}
			require.NoError(t, f.etcd.Restart(f.ctx))
			f.awaitStale(f.plugin, false)
			all := stop()
			f.requireAllServed(all, "while etcd was away")
			after := look(t, f.plugin)
			require.Len(t, after.Workers, 4)
			require.Equal(t, "prefill-ready", after.activation())
			if !wiped {
				require.Equal(t, ids(before), ids(after), "the leases lived on: no worker has changed")
			}
			f.awaitKeys(4)
			f.requireAllServed(f.burst(8), "after etcd came back")
			f.requireNoneAggregated()
			f.requireStrangersRefused()
			t.Logf("etcd away for %s: %d requests, none failed", outage, len(all))
		})
	}
}

// requireStrangersRefused writes records to etcd that would lead clients to what only this
// machine, or its cloud, is to reach. None becomes a worker, and each is a problem.
func (f *etcdFleet) requireStrangersRefused() {
	f.t.Helper()
	const refused = "is where Envoy's admin listens by custom"
	strangers := map[string]string{ // endpoint and bootstrap host, and why not
		"127.0.0.1:9901 127.0.0.1":                                   refused,
		"[::ffff:127.0.0.1]:9901 127.0.0.1":                          refused,
		strings.TrimPrefix(f.plugin.Admin, "http://") + " 127.0.0.1": "is this plugin's own address (admin.listen)",
		"169.254.169.254:80 127.0.0.1":                               "is link-local",
		"127.0.0.1:1 169.254.169.254":                                "bootstrap 169.254.169.254:1 is link-local",
		"127.0.0.1:1 2852039166":                                     "bootstrap 2852039166:1 is an address in another spelling",
		"10.0.0.1:80 127.0.0.1":                                      "is in none of discovery.networks",
		"[::1]:1 127.0.0.1":                                          "is on loopback",
	}
	before, id := look(f.t, f.plugin), 900
	for text := range strangers {
		id++
		endpoint, host, _ := strings.Cut(text, " ")
		_, err := f.store.Put(f.ctx, fmt.Sprintf("baton/v1/workers/%d", id), fmt.Sprintf(
			`{"id":%d,"role":"prefill","engine":"sglang","models":["m"],"endpoint":%q,"block_size":16,"bootstrap":{"host":%q,"port":1}}`, id, endpoint, host))
		require.NoError(f.t, err)
	}
	var now seen
	require.Eventually(f.t, func() bool { now = look(f.t, f.plugin); return len(now.Problems) >= len(strangers) }, 15*time.Second, 20*time.Millisecond)
	for text, why := range strangers {
		require.True(f.t, slices.ContainsFunc(now.Problems, func(p string) bool { return strings.Contains(p, why) }), "%s: %s", text, now.Problems)
	}
	require.Equal(f.t, ids(before), ids(now))
	require.Contains(f.t, f.plugin.Log(), refused)
	f.requireAllServed(f.burst(8), "beside records that are refused")
}

func stopSecond(t *testing.T, p *stack.Plugin) {
	t.Helper()
	require.NoError(t, p.Signal(unix.SIGTERM))
	<-p.Done()
	require.NoError(t, p.Err())
	require.NotContains(t, p.Log(), "DATA RACE")
}

// keys returns etcd's own word on who is registered.
func (f *etcdFleet) keys() []string {
	f.t.Helper()
	resp, err := f.store.Get(f.ctx, "baton/v1/workers/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(f.t, err)
	out := make([]string, 0, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		out = append(out, strings.TrimPrefix(string(kv.Key), "baton/v1/workers/"))
	}
	slices.Sort(out)
	return out
}

// awaitKeys waits until etcd holds n workers and the plugin the same.
func (f *etcdFleet) awaitKeys(n int) {
	f.t.Helper()
	f.await(fmt.Sprintf("etcd and the plugin to know the same %d workers", n), func() bool {
		keys := f.keys()
		return len(keys) == n && slices.Equal(keys, ids(look(f.t, f.plugin)))
	})
}

// TestALeaseRevokedByHandIsMadeAnew: the worker leaves, and is back under
// another id without anybody's help.
func TestALeaseRevokedByHandIsMadeAnew(t *testing.T) {
	t.Parallel()
	withEtcd(t, "", func(t *testing.T, f *etcdFleet) {
		f.pods("prefill", 1)
		f.pods("decode", 2)
		stop := f.steady()
		for range 3 {
			before := f.keys()
			for _, id := range before {
				resp, err := f.store.Get(f.ctx, "baton/v1/workers/"+id)
				require.NoError(t, err)
				require.Len(t, resp.Kvs, 1)
				_, err = f.store.Revoke(f.ctx, clientv3.LeaseID(resp.Kvs[0].Lease))
				require.NoError(t, err)
				f.await("the worker to be back under another id", func() bool {
					keys := f.keys()
					return len(keys) == 3 && !slices.Contains(keys, id) && slices.Equal(keys, ids(look(t, f.plugin)))
				})
			}
		}
		f.requireAllServed(stop(), "a lease was revoked")
		f.requireAllServed(f.burst(8), "after it")
		f.requireNoneAggregated()
	})
}

// TestRegistersThatAreCutOffCostNoRequest is docs/behaviour.md#expired: all leases end, and
// every engine answers. The workers go on, shown as stale, and are fresh again when their
// registers are back.
func TestRegistersThatAreCutOffCostNoRequest(t *testing.T) {
	t.Parallel()
	withEtcd(t, "", func(t *testing.T, f *etcdFleet) {
		members := append(f.pods("prefill", 2), f.pods("decode", 3)...)
		before := ids(look(t, f.plugin))
		stop := f.steady()
		for _, m := range members { // it hears and says nothing, as without a way to etcd
			require.NoError(t, m.register.Signal(unix.SIGSTOP))
		}
		f.await("the leases to run out", func() bool { return len(f.keys()) == 0 })
		f.awaitStaleWorkers(5)
		<-time.After(3 * leaseTTL)
		now := look(t, f.plugin)
		require.Equal(t, before, ids(now), "nobody is lost")
		require.False(t, now.View.Stale)
		for _, w := range now.Workers {
			require.NotEmpty(t, w.Stale)
			require.Equal(t, "healthy", w.State)
		}
		resp, err := http.Post(f.plugin.Admin+"/debug/explain?path=/v1/completions", "application/json", strings.NewReader(completion("explained", 2, false)))
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Contains(t, string(text), `"stale_seconds"`)

		for _, m := range members {
			require.NoError(t, m.register.Signal(unix.SIGCONT))
		}
		f.awaitStaleWorkers(0)
		f.awaitKeys(5)
		all := stop()
		f.requireAllServed(all, "while registers were cut off")
		require.Len(t, look(t, f.plugin).Workers, 5)
		f.requireNoneAggregated()
		require.Empty(t, logLines(f.plugin.Log(), "records of workers: left"))
		require.NotEmpty(t, logLines(f.plugin.Log(), "records of workers: stale"))
		require.NotEmpty(t, logLines(f.plugin.Log(), "records of workers: registered"))
		t.Logf("registers cut off for three leases: %d requests, none failed", len(all))
	})
}

// TestAPluginThatStartsWhileRegistersAreCutOffServesTheFleetThatAnswers is
// docs/behaviour.md#expired at a start: the listing of etcd is empty and fresh, and the fleet is
// only in the file of the plugin before. So it is for a second start, too. An engine that has died
// meanwhile is gone.
func TestAPluginThatStartsWhileRegistersAreCutOffServesTheFleetThatAnswers(t *testing.T) {
	t.Parallel()
	f := newEtcdFleet(t, false, "", "--discovery-cache", filepath.Join(t.TempDir(), "last.yaml"))
	members := append(f.pods("decode", 3), f.pods("prefill", 2)...)
	for _, m := range members {
		require.NoError(t, m.register.Signal(unix.SIGSTOP))
	}
	f.await("the leases to run out", func() bool { return len(f.keys()) == 0 })
	f.awaitStaleWorkers(5)
	for _, left := range []int{4, 3} {
		require.NoError(t, f.plugin.Kill())
		<-f.plugin.Done()
		require.NoError(t, members[0].worker.Kill())
		<-members[0].worker.Done()
		members = members[1:]
		f.fleet.plugin = f.newPlugin(f.dir, false)
		f.awaitStaleWorkers(left)
		f.await("the dead engine to be gone", func() bool { return len(look(t, f.plugin).Workers) == left })
		f.requireServed(f.awaitEnvoy(), "by a fleet that is not registered")
		require.NotEmpty(t, logLines(f.plugin.Log(), "known before the start"))
	}
	for _, m := range members {
		require.NoError(t, m.register.Signal(unix.SIGCONT))
	}
	f.awaitStaleWorkers(0)
	f.awaitKeys(3)
	f.requireAllServed(f.burst(8), "by a fleet that is registered again")
}

// awaitStaleWorkers waits until so many workers go on without a record.
func (f *etcdFleet) awaitStaleWorkers(n int) {
	f.t.Helper()
	f.await(fmt.Sprintf("%d stale workers", n), func() bool { return f.metric("baton_stale_workers") == float64(n) })
}

// TestAPluginThatIsRestartedKnowsEachStateAgain is docs/behaviour.md#state-survives.
func TestAPluginThatIsRestartedKnowsEachStateAgain(t *testing.T) {
	t.Parallel()
	f := newEtcdFleet(t, false, "")
	restarted := func(state string) {
		t.Helper()
		before := look(t, f.plugin)
		require.Equal(t, state, before.activation())
		require.NoError(t, f.plugin.Kill())
		<-f.plugin.Done()
		f.fleet.plugin = f.newPlugin(f.dir, false)
		require.Equal(t, stateLines(before), stateLines(look(t, f.plugin)))
	}
	restarted("absent")
	decode := f.pods("decode", 1)
	restarted("decode-waiting")
	f.requireTyped(f.awaitEnvoy(), "without prefill", "no_aggregated_worker")
	// One that says it is a prefill worker but not where its bootstrap is.
	put, err := f.store.Put(f.ctx, "baton/v1/workers/77",
		`{"id":77,"role":"prefill","engine":"sglang","models":["m"],"endpoint":"127.0.0.1:1","dp_size":1,"block_size":16}`)
	require.NoError(t, err)
	require.NotZero(t, put.Header.Revision)
	f.await("the pending prefill worker to be seen", func() bool { return look(t, f.plugin).activation() == "prefill-pending" })
	restarted("prefill-pending")
	f.requireTyped(f.awaitEnvoy(), "with a prefill worker without its facts", "prefill_not_ready")
	_, err = f.store.Delete(f.ctx, "baton/v1/workers/77")
	require.NoError(t, err)
	prefill := f.pods("prefill", 1)
	restarted("prefill-ready")
	f.requireServed(f.awaitEnvoy(), "after a restart")
	f.kill(decode...)
	f.awaitGone(decode...)
	restarted("prefill-ready")
	f.requireTyped(f.awaitEnvoy(), "without decode", "no_decode_worker")
	f.pods("decode", 1)
	f.requireServed(f.awaitEnvoy(), "with decode again")
	f.kill(prefill...)
	f.awaitGone(prefill...)
	require.Equal(t, "deactivated", look(t, f.plugin).activation())
	require.NoError(t, f.plugin.Kill())
	<-f.plugin.Done()
	f.fleet.plugin = f.newPlugin(f.dir, false)
	// The new process has never seen prefill: it waits, and says the same.
	require.Equal(t, "decode-waiting", look(t, f.plugin).activation())
	f.requireTyped(f.awaitEnvoy(), "prefill is away", "no_aggregated_worker")
	f.pods("prefill", 1)
	f.firstServed("no_aggregated_worker", "prefill_not_ready")
}

// awaitEnvoy sends a request once Envoy has found the new plugin.
func (f *etcdFleet) awaitEnvoy() (s sent) {
	f.t.Helper()
	f.await("Envoy to find the plugin", func() bool {
		s = f.ask()
		return !strings.Contains(s.body, "router_unavailable")
	})
	return s
}

// TestTwoPluginsOverTheSameEtcdAgree after every kind of change.
func TestTwoPluginsOverTheSameEtcdAgree(t *testing.T) {
	t.Parallel()
	f := newEtcdFleet(t, false, "")
	second := f.newPlugin(t.TempDir(), false)
	agree := func(workers int) {
		t.Helper()
		f.awaitKeys(workers)
		f.await("both plugins to agree", func() bool {
			return stateLines(look(t, f.plugin)) == stateLines(look(t, second))
		})
	}
	agree(0)
	decode := f.pods("decode", 2)
	agree(2)
	prefill := f.pods("prefill", 2)
	agree(4)
	f.kill(decode[0])
	f.awaitGone(decode[0])
	agree(3)
	f.kill(prefill...)
	f.awaitGone(prefill...)
	agree(1)
	f.pods("prefill", 1)
	agree(2)
	require.NoError(t, f.etcd.Kill())
	<-f.etcd.Done()
	f.awaitStale(f.plugin, true)
	f.awaitStale(second, true)
	require.Equal(t, stateLines(look(t, f.plugin)), stateLines(look(t, second)))
	require.NoError(t, f.etcd.Restart(f.ctx))
	f.awaitStale(f.plugin, false)
	f.awaitStale(second, false)
	agree(2)
	stopSecond(t, second)
}

// TestAFleetOfDynamosIsSeenAndSentNothing: its workers are read beside ours, and
// say why they are not used.
func TestAFleetOfDynamosIsSeenAndSentNothing(t *testing.T) {
	t.Parallel()
	f := newEtcdFleet(t, false, "")
	p, err := stack.StartPlugin(f.ctx, stack.PluginOptions{
		BinDir: binDir, Dir: t.TempDir(), Etcd: f.etcd.Endpoints, Dynamo: true, Args: f.args,
	})
	require.NoError(t, err)
	put := func(key, value string) {
		_, err := f.store.Put(f.ctx, key, value)
		require.NoError(t, err)
	}
	for _, w := range []struct{ component, id, role, extra string }{
		{"prefill", "12345678901234567", "prefill", `,"disaggregated_endpoint":{"bootstrap_host":"127.0.0.1","bootstrap_port":8998}`},
		{"backend", "12345678901234568", "decode", ""},
	} {
		id, err := strconv.ParseUint(w.id, 10, 64)
		require.NoError(t, err)
		put(fmt.Sprintf("v1/instances/dynamo/%s/generate/%x", w.component, id),
			fmt.Sprintf(`{"type":"Endpoint","namespace":"dynamo","component":%q,"endpoint":"generate","instance_id":%s,"transport":{"tcp":"127.0.0.1:1/%x/dynamo/%s/generate"}}`, w.component, w.id, id, w.component))
		put(fmt.Sprintf("v1/mdc/dynamo/%s/generate/%x", w.component, id),
			fmt.Sprintf(`{"type":"Model","namespace":"dynamo","component":%q,"endpoint":"generate","instance_id":%s,"card_json":{"display_name":"m","kv_cache_block_size":16,"model_type":"","worker_type":%q,"runtime_config":{"data_parallel_size":1%s}}}`, w.component, w.id, w.role, w.extra))
	}
	f.await("Dynamo's workers to be seen", func() bool { return len(look(t, p).Workers) == 2 })
	s := look(t, p)
	require.Equal(t, []string{"12345678901234567", "12345678901234568"}, ids(s))
	for _, w := range s.Workers {
		require.Contains(t, w.Reason, "speaks no HTTP")
	}
	require.Empty(t, look(t, f.plugin).Workers, "without the option they are nobody's")
	stopSecond(t, p)
	f.pods("prefill", 1)
	f.pods("decode", 1)
	f.requireAllServed(f.burst(2), "ours, beside them")
}

// TestAWorkerDrains: on SIGTERM to what registers it, a worker gets no new
// picks, its running answers end whole, and then it is gone.
func TestAWorkerDrains(t *testing.T) {
	t.Parallel()
	withEtcd(t, "", func(t *testing.T, f *etcdFleet) {
		f.pods("prefill", 1)
		decode := []*member{f.engine("decode", slowDecode...), f.engine("decode", slowDecode...)}
		for _, m := range decode {
			f.announce(m)
		}
		f.awaitSeen(decode...)
		f.decode = []*stack.Worker{decode[0].worker, decode[1].worker}
		wait := f.streamers(16, 60)
		leaver := decode[0]
		running, ok := f.state(leaver.worker)
		require.True(t, ok)
		require.Positive(t, running.Running)
		require.NoError(t, leaver.register.Signal(unix.SIGTERM))
		f.await("the worker to be seen draining", func() bool {
			for _, w := range look(t, f.plugin).Workers {
				if w.Endpoint == leaver.worker.Info.Endpoint.String() {
					return w.State == "draining"
				}
			}
			return false
		})
		taken := f.received(leaver.worker)
		f.requireAllServed(f.burst(8), "while one drains")
		leaver.got = f.got(leaver.worker)
		require.Equal(t, taken, f.received(leaver.worker), "no new pick")
		require.True(t, alive(leaver.worker))
		stopped := make(chan error, 1)
		go func() { // as a pod does whose preStop hook has ended
			<-leaver.register.Done()
			stopped <- leaver.worker.Kill()
		}()
		for i, r := range wait() {
			requireAnswer(t, r, fmt.Sprintf("stream %d", i), 60)
		}
		require.NoError(t, <-stopped)
		<-leaver.worker.Done()
		require.NoError(t, leaver.register.Err(), leaver.register.Log())
		f.awaitGone(leaver)
		f.requireAllServed(f.burst(8), "after it")
		f.requireNoneAggregated()
	})
}

// TestAnEngineThatDiesIsGoneAtOnceAndBackUnderAnotherID: what registers it
// lives on and needs no lease to run out.
func TestAnEngineThatDiesIsGoneAtOnceAndBackUnderAnotherID(t *testing.T) {
	t.Parallel()
	f := newEtcdFleet(t, true, "")
	f.pods("prefill", 1)
	decode := f.pods("decode", 1)[0]
	f.firstServed()
	before := f.keys()
	require.NoError(t, decode.worker.Kill())
	<-decode.worker.Done()
	f.await("the dead engine to be gone", func() bool { return len(f.keys()) == 1 })
	f.awaitGone(decode)
	again, err := stack.StartWorker(f.ctx, binDir, "--role", "decode", "--id", "4711", "--model", "m",
		"--listen", decode.worker.Info.Endpoint.String())
	require.NoError(t, err)
	f.workers = append(f.workers, again)
	f.members = append(f.members, &member{role: "decode", worker: again})
	f.firstServed(away...)
	after := f.keys()
	require.Len(t, after, 2)
	require.NotEqual(t, before, after)
}

// TestTheLeaderOfEtcdMovesAndDies under load, in a cluster of three: nobody
// notices.
func TestTheLeaderOfEtcdMovesAndDies(t *testing.T) {
	t.Parallel()
	f := newEtcdFleetOf(t, 3, true, "")
	f.pods("prefill", 1)
	f.pods("decode", 2)
	before := f.keys()
	stop := f.steady()
	leader := func() (of *stack.Etcd, id uint64) {
		for _, m := range f.cluster {
			ctx, cancel := context.WithTimeout(f.ctx, 300*time.Millisecond)
			st, err := f.store.Status(ctx, m.Endpoints[0])
			cancel()
			if err == nil && st.Leader == st.Header.MemberId {
				return m, st.Leader
			}
		}
		return nil, 0
	}
	first, id := leader()
	require.NotNil(t, first)
	members, err := f.store.MemberList(f.ctx)
	require.NoError(t, err)
	var to uint64
	for _, m := range members.Members {
		if m.ID != id {
			to = m.ID
		}
	}
	at, err := clientv3.New(clientv3.Config{Endpoints: first.Endpoints})
	require.NoError(t, err)
	defer at.Close()
	moving, moved := context.WithTimeout(f.ctx, 5*time.Second)
	defer moved()
	_, err = at.MoveLeader(moving, to)
	require.NoError(t, err)
	f.await("another leader", func() bool { _, now := leader(); return now == to })
	require.Equal(t, before, f.keys())
	second, _ := leader()
	require.NoError(t, second.Kill())
	<-second.Done()
	f.await("a leader of two", func() bool { m, _ := leader(); return m != nil && m != second })
	f.awaitStale(f.plugin, false)
	f.requireAllServed(stop(), "while the leader moved and died")
	f.awaitKeys(3)
	f.requireNoneAggregated()
}
