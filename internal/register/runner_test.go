package register_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/internal/register"
	"github.com/seed-60ae5743/baton/internal/register/registertest"
	"github.com/seed-60ae5743/baton/internal/syncbuf"
)

// TestMain lets more tests run beside each other than there are processors: those
// that see a registry away, or a long drain, wait most of the time.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func eventually(t *testing.T, ok func() bool, what string) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, 2*time.Millisecond, what)
}

func TestAnEngineThatWasReplacedUnnoticedHasAnotherLife(t *testing.T) {
	life := int64(1)
	var mu sync.Mutex
	srv := httptest.NewServer(sglangLike(func() string {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprintf(`{"model_path":"m","page_size":16,"random_seed":%d}`, life)
	}))
	defer srv.Close()
	reg := &registertest.Registry{}
	c := registertest.Quick(srv.URL)
	c.Refresh, c.HealthInterval = time.Hour, time.Hour
	r, run := registertest.StartRunner(t, c, reg)
	eventually(t, r.Ready, "ready")
	mu.Lock()
	life = 2
	mu.Unlock()
	srv.CloseClientConnections() // all that anybody sees of it
	eventually(t, func() bool { return reg.Told() == "aggregated id 1, aggregated id 2" }, "another life")
	r.Hurry()
	require.NoError(t, run.Wait(t))
}

// sglangLike answers as an engine without metrics.
func sglangLike(info func() string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/server_info", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, info()) })
	return mux
}

func TestASecondSignalEndsADrainAtOnce(t *testing.T) {
	srv := httptest.NewServer(sglangLike(func() string { return `{"model_path":"m","page_size":16}` }))
	defer srv.Close()
	reg := &registertest.Registry{}
	r, run := registertest.StartRunner(t, registertest.Quick(srv.URL), reg)
	eventually(t, r.Ready, "ready")
	run.Stop()
	eventually(t, func() bool { return r.State().Phase == "draining" }, "draining")
	r.Hurry()
	r.Hurry()
	require.NoError(t, run.Wait(t))
	require.Equal(t, "aggregated id 1, aggregated id 1 draining, gone", reg.Told())
}

func TestAnEngineThatCountsNothingIsGivenTheWholeTime(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(sglangLike(func() string { return `{"model_path":"m","page_size":16}` }))
	defer srv.Close()
	reg := &registertest.Registry{}
	var log syncbuf.Buffer
	c := registertest.Quick(srv.URL)
	c.DrainTimeout = 300 * time.Millisecond
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	r, run := registertest.StartRunner(t, c, reg)
	eventually(t, r.Ready, "ready")
	run.Stop()
	require.NoError(t, run.Wait(t))
	require.Equal(t, 1, strings.Count(log.String(), "requests in flight are not known"))
	require.Contains(t, log.String(), "the drain time-out is over")
}

func TestARegistryThatIsAwayIsToldOfAtTheEnd(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(sglangLike(func() string { return `{"model_path":"m","page_size":16}` }))
	defer srv.Close()
	reg := &registertest.Registry{}
	reg.Close()
	r, run := registertest.StartRunner(t, registertest.Quick(srv.URL), reg)
	eventually(t, func() bool { return r.State().Phase == "announcing" }, "announcing")
	require.False(t, r.Ready(), "nobody has said that it is held")
	_, body := registertest.Page(r, "/readyz")
	require.Equal(t, "not ready: announcing: the registry does not hold the record yet\n", body)
	r.Failed(errors.New("etcd: grant: no connection"))
	_, body = registertest.Page(r, "/readyz")
	require.Equal(t, "not ready: announcing: the registry does not hold the record yet: etcd: grant: no connection\n", body)
	_, body = registertest.Page(r, "/state")
	require.Contains(t, body, `"registry": "etcd: grant: no connection"`)
	require.Contains(t, body, `"phase": "announcing"`)
	run.Stop() // no requests can have come: nothing to drain
	err := run.Wait(t)
	require.ErrorContains(t, err, "may outlive this process")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, "aggregated id 1, gone", reg.Told())
}

// slowNames is a resolver that takes its time to give up.
type slowNames struct{ begun, ended chan struct{} }

func (s slowNames) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	close(s.begun)
	<-ctx.Done()
	<-time.After(50 * time.Millisecond)
	close(s.ended)
	return nil, ctx.Err()
}

func TestRunEndsAfterAllThatItBegan(t *testing.T) {
	srv := httptest.NewServer(sglangLike(func() string { return `{"model_path":"m","page_size":16}` }))
	defer srv.Close()
	c := registertest.Quick(srv.URL)
	names := slowNames{make(chan struct{}), make(chan struct{})}
	c.Resolver, c.Advertise = names, "a-name"
	r, run := registertest.StartRunner(t, c, &registertest.Registry{})
	<-names.begun
	r.Hurry()
	require.NoError(t, run.Wait(t))
	select {
	case <-names.ended:
	default:
		require.Fail(t, "Run has ended, and a question of it goes on")
	}
}

// A registry that goes away after it held the worker keeps nobody from picking
// it: it drains.
func TestAWorkerThatWasHeldOnceDrainsWithoutARegistry(t *testing.T) {
	t.Parallel()
	var info atomic.Pointer[string]
	set := func(text string) { info.Store(&text) }
	set(`{"model_path":"m","page_size":16,"random_seed":1}`)
	srv := httptest.NewServer(sglangLike(func() string { return *info.Load() }))
	defer srv.Close()
	reg := &registertest.Registry{}
	r, err := register.New(registertest.Quick(srv.URL), reg)
	require.NoError(t, err)
	r.Failed(errors.New("no connection"))
	run := registertest.Start(t, r.Run)
	t.Cleanup(r.Hurry)
	eventually(t, r.Ready, "ready")
	reg.Close()
	set(`{"model_path":"n","page_size":16,"random_seed":1}`)
	eventually(t, func() bool { return reg.Told() == "aggregated id 1, aggregated id 1" }, "announced anew")
	eventually(t, func() bool { return r.State().Phase == "announcing" }, "announcing")
	require.Empty(t, r.State().Registry, "that was before it held the worker")
	run.Stop()
	eventually(t, func() bool { return r.State().Phase == "draining" }, "draining")
	r.Hurry()
	require.Error(t, run.Wait(t))
}

// What was announced and not held is waited for by nobody once there is something
// newer: neither another record nor its withdrawal.
func TestOnlyTheLatestAnnouncementIsWaitedFor(t *testing.T) {
	t.Parallel()
	var model atomic.Int64
	var ill atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		if ill.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("/server_info", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"model_path":"m%d","page_size":16,"random_seed":1}`, model.Load())
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	reg := &registertest.Registry{}
	reg.Close()
	r, run := registertest.StartRunner(t, registertest.Quick(srv.URL), reg)
	for n := range 4 {
		model.Store(int64(n))
		eventually(t, func() bool { w, ok := reg.Record(); return ok && w.Models[0] == fmt.Sprintf("m%d", n) }, "announced anew")
	}
	eventually(t, func() bool { return reg.Waiting() == 1 }, "one is waited for")
	ill.Store(true)
	eventually(t, func() bool { _, ok := reg.Record(); return !ok }, "gone")
	eventually(t, func() bool { return reg.Waiting() == 0 }, "none is waited for")
	r.Hurry()
	require.Error(t, run.Wait(t))
}

func TestARecordThatTheRegistryRefusesIsNotHeld(t *testing.T) {
	t.Parallel()
	var read atomic.Int64
	srv := httptest.NewServer(sglangLike(func() string {
		read.Add(1)
		return `{"model_path":"m","page_size":16,"random_seed":1}`
	}))
	defer srv.Close()
	reg := &registertest.Registry{}
	reg.Refuse(errors.New("models: too many"))
	var log syncbuf.Buffer
	c := registertest.Quick(srv.URL)
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	r, run := registertest.StartRunner(t, c, reg)
	eventually(t, func() bool { return strings.Contains(log.String(), "the registry does not take the record") }, "it is said")
	eventually(t, func() bool { return r.State().Registry == "models: too many" }, "and shown")
	before := read.Load()
	eventually(t, func() bool { return read.Load() > before+2 }, "whatever comes of it has come")
	require.Equal(t, "announcing", r.State().Phase)
	require.False(t, r.Ready())
	code, body := registertest.Page(r, "/readyz")
	require.Equal(t, 503, code)
	require.Contains(t, body, "models: too many")
	r.Hurry()
	require.ErrorContains(t, run.Wait(t), "models: too many")
	require.NotContains(t, log.String(), "msg=announced")
}

// One answer that fails on the way takes nobody away; see package engine for
// what is read from which page.
func TestAPageThatFailsOnceChangesNothing(t *testing.T) {
	t.Parallel()
	var fails atomic.Bool
	var asked atomic.Int64
	mux := http.NewServeMux()
	answer := func(path, text string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if path == "/metrics" && fails.Load() {
				asked.Add(1)
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, text)
		})
	}
	answer("/health", "")
	answer("/version", `{"version":"0.33.0"}`)
	answer("/v1/models", `{"data":[{"id":"m"}]}`)
	answer("/metrics", "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"9\"} 1\n"+
		"vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"9\"} 1\nprocess_start_time_seconds 1\n")
	srv := httptest.NewServer(mux)
	defer srv.Close()
	reg := &registertest.Registry{}
	r, run := registertest.StartRunner(t, registertest.Quick(srv.URL), reg)
	eventually(t, r.Ready, "ready")
	fails.Store(true)
	eventually(t, func() bool { return asked.Load() >= 2 }, "read again")
	require.Equal(t, "engine: /metrics: status 503", r.State().Kept)
	fails.Store(false)
	eventually(t, func() bool { return r.State().Kept == "" }, "and again")
	require.Equal(t, "aggregated id 1", reg.Told())
	require.Equal(t, uint32(2), r.State().Record.DPSize)
	r.Hurry()
	require.NoError(t, run.Wait(t))
}
