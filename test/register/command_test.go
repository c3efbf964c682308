package register_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// startEtcd runs a real etcd until the test ends and returns its address.
func startEtcd(t *testing.T, bin string) string {
	t.Helper()
	e, err := stack.StartEtcd(t.Context(), stack.EtcdOptions{BinDir: bin, Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.Kill() })
	return e.Endpoints[0]
}

// commands builds the commands, and returns their folder.
func commands(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	require.NoError(t, stack.Build(bin, "", false, "./cmd/extproc", "./test/cmd/devetcd"))
	return bin
}

// startRegister runs the command beside the engine until the test ends.
func startRegister(t *testing.T, bin string, sim *enginesim.Sim, endpoint string, more ...string) *stack.Process {
	t.Helper()
	p, err := stack.StartProgram(t.Context(), stack.ProgramOptions{
		Name: "register", Path: filepath.Join(bin, "extproc"),
		Args: append([]string{"register", "--engine-url", sim.URL(), "--etcd-endpoints", endpoint, "--admin", "127.0.0.1:0"}, more...),
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

// requireEnd waits until the command has ended, and ended well.
func requireEnd(t *testing.T, p *stack.Process) {
	t.Helper()
	select {
	case <-p.Done():
		require.NoError(t, p.Err(), p.Log())
	case <-time.After(10 * time.Second):
		require.Fail(t, "it goes on", p.Log())
	}
}

// registered returns the workers that etcd holds.
func registered(t *testing.T, client *clientv3.Client) []*worker.Worker {
	res, err := client.Get(t.Context(), etcd.DefaultPrefix, clientv3.WithPrefix())
	require.NoError(t, err)
	var out []*worker.Worker
	for _, kv := range res.Kvs {
		w, err := record.ParseKnown(string(kv.Key), kv.Value)
		require.NoError(t, err)
		out = append(out, w)
	}
	return out
}

// one waits until etcd holds one worker of which ok holds.
func one(t *testing.T, client *clientv3.Client, what string, ok func(*worker.Worker) bool) *worker.Worker {
	t.Helper()
	var w *worker.Worker
	require.Eventually(t, func() bool {
		ws := registered(t, client)
		if len(ws) == 1 && ok(ws[0]) {
			w = ws[0]
		}
		return w != nil
	}, 20*time.Second, 2*time.Millisecond, what)
	return w
}

func none(t *testing.T, client *clientv3.Client, what string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(registered(t, client)) == 0 }, 20*time.Second, 2*time.Millisecond, what)
}

func any1(*worker.Worker) bool { return true }

// startEngine runs a simulated engine; stop ends it as a killed process ends.
func startEngine(t *testing.T, listen string) (sim *enginesim.Sim, stop func()) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		sim, err = enginesim.New(enginesim.Config{
			Role: worker.Aggregated, Listen: listen, DecodePerToken: 20 * time.Millisecond, KVEventsPort: enginesim.Off,
		})
		return err == nil
	}, 20*time.Second, 5*time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = sim.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return sim, stop
}

// TestAWorkerComesAndGoesWithItsEngine: the whole command with a real etcd. The
// lease is long and questions after health are rare: what is quick is quick for
// other reasons.
func TestAWorkerComesAndGoesWithItsEngine(t *testing.T) {
	t.Parallel()
	bin := commands(t)
	endpoint := startEtcd(t, bin)
	client, err := etcd.Dial(etcd.ClientConfig{Endpoints: []string{endpoint}})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	sim, kill := startEngine(t, "127.0.0.1:0")
	p := startRegister(t, bin, sim, endpoint,
		"--lease-ttl", "60s", "--health-interval", "500ms", "--refresh", "1h", "--drain-settle", "10ms", "--namespace", "ns")
	first := one(t, client, "it appears", any1)
	require.Equal(t, sim.Addr(), first.Endpoint.String())
	require.Equal(t, "ns", first.Namespace)
	require.Equal(t, worker.Aggregated, first.Role)
	wordAfter(t, p, "msg=announced worker_id="+first.ID.String()) // which follows the key

	began := time.Now()
	kill()
	none(t, client, "it is gone with its engine")
	gone := time.Since(began)

	began = time.Now()
	sim, _ = startEngine(t, sim.Addr())
	second := one(t, client, "it is back", any1)
	t.Logf("gone after %v, back after %v", gone, time.Since(began))
	require.NotEqual(t, first.ID, second.ID)

	answer := make(chan string, 1)
	go func() {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := c.Post(sim.URL()+"/v1/completions", "application/json", strings.NewReader(`{"model":"sim","prompt":"a","max_tokens":30}`))
		if err != nil {
			answer <- err.Error()
			return
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		answer <- fmt.Sprintf("%d %v", res.StatusCode, err)
	}()
	require.Eventually(t, func() bool { return sim.State(false).Running == 1 }, 20*time.Second, time.Millisecond)
	require.NoError(t, p.Signal(syscall.SIGTERM))
	drained := one(t, client, "it drains", func(w *worker.Worker) bool { return w.Draining })
	require.Equal(t, second.ID, drained.ID, "the same worker")
	none(t, client, "it is gone after the drain")
	select {
	case text := <-answer:
		require.Equal(t, "200 <nil>", text)
	default:
		require.Fail(t, "it was gone before its request was answered")
	}
	requireEnd(t, p)
	for _, want := range []string{"msg=announced worker_id=" + first.ID.String(), "msg=withdrawn", "msg=draining", "msg=gone why=drained"} {
		require.Contains(t, p.Log(), want)
	}
}

// wordAfter returns the rest of the line that follows the text, once there is one.
func wordAfter(t *testing.T, p *stack.Process, text string) (word string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, rest, _ := strings.Cut(p.Log(), text)
		var ended bool
		word, _, ended = strings.Cut(rest, "\n")
		return ended
	}, 20*time.Second, 2*time.Millisecond, text)
	return word
}

// TestEtcdIsAwayFromTheStart: it is said why nothing is announced, and whoever was
// never known leaves at once. Then etcd is there, and goes without a word.
func TestEtcdIsAwayFromTheStart(t *testing.T) {
	t.Parallel()
	bin := commands(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := free.Addr().String()
	require.NoError(t, free.Close())
	sim, _ := startEngine(t, "127.0.0.1:0")
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	start := func(endpoint string) (get func(path string) string, p *stack.Process) {
		p = startRegister(t, bin, sim, endpoint, "--drain-timeout", "1h", "--drain-settle", "1ms")
		base := wordAfter(t, p, `msg="admin address" url=`)
		return func(path string) string {
			res, err := web.Get(base + path)
			if err != nil {
				return err.Error()
			}
			defer res.Body.Close()
			b, _ := io.ReadAll(res.Body)
			return string(b)
		}, p
	}
	end := func(p *stack.Process) {
		require.NoError(t, p.Signal(syscall.SIGTERM))
		requireEnd(t, p)
	}

	get, p := start(nobody)
	require.Eventually(t, func() bool {
		return strings.HasPrefix(get("/readyz"), "not ready: announcing: the registry does not hold the record yet: etcd: grant: ")
	}, 20*time.Second, 5*time.Millisecond, "it is said why")
	require.Contains(t, get("/metrics"), "baton_register_registry_failures_total 1\n")
	end(p)

	get, p = start(startEtcd(t, bin))
	require.Eventually(t, func() bool { return get("/readyz") == "ready\n" }, 20*time.Second, 5*time.Millisecond)
	for _, want := range []string{"held 1", "registrations_total 1", "losses_total 0", "registry_failures_total 0"} {
		require.Contains(t, get("/metrics"), "baton_register_"+want+"\n")
	}
	end(p)
}
