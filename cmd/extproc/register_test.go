package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/seed-60ae5743/baton/internal/syncbuf"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// startEtcd runs a real etcd until the test ends and returns its address.
func startEtcd(t *testing.T) string {
	t.Helper()
	c := embed.NewConfig()
	c.Dir = t.TempDir()
	c.TickMs, c.ElectionMs = 10, 100
	c.UnsafeNoFsync = true
	c.LogLevel, c.LogOutputs = "fatal", []string{"/dev/null"}
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	c.ListenClientUrls, c.AdvertiseClientUrls, c.ListenPeerUrls, c.AdvertisePeerUrls = free, free, free, free
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	return e.Clients[0].Addr().String()
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
	endpoint := startEtcd(t)
	client, err := etcd.Dial(etcd.ClientConfig{Endpoints: []string{endpoint}})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	sim, kill := startEngine(t, "127.0.0.1:0")

	ctx, sigterm := context.WithCancel(t.Context())
	defer sigterm()
	var stderr syncbuf.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{
			"register", "--engine-url", sim.URL(), "--etcd-endpoints", endpoint, "--lease-ttl", "60s", "--health-interval", "500ms",
			"--refresh", "1h", "--drain-settle", "10ms", "--namespace", "ns", "--admin", "127.0.0.1:0",
		}, io.Discard, &stderr)
	}()
	first := one(t, client, "it appears", any1)
	require.Equal(t, sim.Addr(), first.Endpoint.String())
	require.Equal(t, "ns", first.Namespace)
	require.Equal(t, worker.Aggregated, first.Role)
	wordAfter(t, &stderr, "msg=announced worker_id="+first.ID.String()) // which follows the key

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
	sigterm()
	drained := one(t, client, "it drains", func(w *worker.Worker) bool { return w.Draining })
	require.Equal(t, second.ID, drained.ID, "the same worker")
	none(t, client, "it is gone after the drain")
	select {
	case text := <-answer:
		require.Equal(t, "200 <nil>", text)
	default:
		require.Fail(t, "it was gone before its request was answered")
	}
	require.Zero(t, <-code, "%s", &stderr)
	for _, want := range []string{"msg=announced worker_id=" + first.ID.String(), "msg=withdrawn", "msg=draining", "msg=gone why=drained"} {
		require.Contains(t, stderr.String(), want)
	}
}

// wordAfter returns the rest of the line that follows the text, once there is one.
func wordAfter(t *testing.T, said *syncbuf.Buffer, text string) (word string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, rest, _ := strings.Cut(said.String(), text)
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
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := free.Addr().String()
	require.NoError(t, free.Close())
	sim, _ := startEngine(t, "127.0.0.1:0")
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	start := func(endpoint string) (get func(path string) string, sigterm func(), code chan int) {
		ctx, cancel := context.WithCancel(t.Context())
		stderr := &syncbuf.Buffer{}
		code = make(chan int, 1)
		go func() {
			code <- run(ctx, []string{
				"register", "--engine-url", sim.URL(), "--etcd-endpoints", endpoint, "--drain-timeout", "1h", "--drain-settle", "1ms",
				"--admin", "127.0.0.1:0",
			}, io.Discard, stderr)
		}()
		base := wordAfter(t, stderr, `msg="admin address" url=`)
		return func(path string) string {
			res, err := web.Get(base + path)
			if err != nil {
				return err.Error()
			}
			defer res.Body.Close()
			b, _ := io.ReadAll(res.Body)
			return string(b)
		}, cancel, code
	}
	ends := func(code chan int) {
		select {
		case c := <-code:
			require.Zero(t, c)
		case <-time.After(10 * time.Second):
			require.Fail(t, "it goes on")
		}
	}

	get, sigterm, code := start(nobody)
	require.Eventually(t, func() bool {
		return strings.HasPrefix(get("/readyz"), "not ready: announcing: the registry does not hold the record yet: etcd: grant: ")
	}, 20*time.Second, 5*time.Millisecond, "it is said why")
	require.Contains(t, get("/metrics"), "baton_register_registry_failures_total 1\n")
	sigterm()
	ends(code)

	get, sigterm, code = start(startEtcd(t))
	require.Eventually(t, func() bool { return get("/readyz") == "ready\n" }, 20*time.Second, 5*time.Millisecond)
	for _, want := range []string{"held 1", "registrations_total 1", "losses_total 0", "registry_failures_total 0"} {
		require.Contains(t, get("/metrics"), "baton_register_"+want+"\n")
	}
	sigterm()
	ends(code)
}

func TestTheSecondSignalHurries(t *testing.T) {
	seen := make(chan os.Signal, 2)
	signal.Notify(seen, syscall.SIGTERM)
	defer signal.Stop(seen)
	hurried := make(chan struct{})
	stop := hurryAtSecondSignal(func() { close(hurried) })
	defer stop()
	for i := range 2 {
		select {
		case <-hurried:
			require.Fail(t, "hurried by one signal")
		default:
		}
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
		select {
		case <-seen:
		case <-time.After(10 * time.Second):
			require.Fail(t, "no signal", "%d", i)
		}
	}
	select {
	case <-hurried:
	case <-time.After(10 * time.Second):
		require.Fail(t, "not hurried by two signals")
	}
}
