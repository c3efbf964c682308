package plugin_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/plugin"
	"github.com/seed-60ae5743/baton/internal/syncbuf"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a plugin that serves within the test. It is asked as an operator asks it.
type running struct {
	t       *testing.T
	config  config.Config
	page    string // where it has its page
	workers string // the file of the workers
	log     *syncbuf.Buffer
	stop    context.CancelFunc // as SIGTERM does
	ended   chan error
}

// startPlugin serves with a configuration until the test ends. There is no workers file
// until the test writes one.
func startPlugin(t *testing.T, settings string) *running {
	t.Helper()
	workers := filepath.Join(t.TempDir(), "workers.yaml")
	r := serve(t, "discovery: {file: "+workers+"}\n"+settings)
	r.workers = workers
	return r
}

// serve serves with a whole configuration, but for the page's address, until the test ends.
func serve(t *testing.T, settings string) *running {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte("admin: {listen: \"127.0.0.1:0\"}\n"+settings), 0o600))
	c, err := config.Read(file)
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, config: c, log: &syncbuf.Buffer{}, stop: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- plugin.Serve(ctx, c, nil, nil, r.log) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.ended:
			require.NoError(t, err)
		case <-time.After(10 * time.Second):
			t.Error("the plugin did not end: " + r.log.String())
		}
		http.DefaultClient.CloseIdleConnections()
	})
	r.page = r.address("admin=http://")
	return r
}

// address is one that the plugin logs at its start.
func (r *running) address(key string) (at string) {
	r.t.Helper()
	logged := regexp.MustCompile(" " + key + `(\S+)`)
	require.Eventually(r.t, func() bool {
		m := logged.FindStringSubmatch(r.log.String())
		if m != nil {
			at = m[1]
		}
		return m != nil
	}, 20*time.Second, time.Millisecond, "%s", r.log)
	return at
}

// end stops the plugin as SIGTERM does.
func (r *running) end() {
	r.t.Helper()
	r.stop()
	err := <-r.ended
	require.NoError(r.t, err)
	r.ended <- err // for the cleanup
}

func (r *running) writeWorkers(text string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(r.workers+".new", []byte(text), 0o600))
	require.NoError(r.t, os.Rename(r.workers+".new", r.workers))
}

func (r *running) ready() (code int, why string) { return r.ask(http.MethodGet, "/readyz", nil) }

func (r *running) get(path string) string {
	r.t.Helper()
	_, text := r.ask(http.MethodGet, path, nil)
	return text
}

func (r *running) ask(method, path string, body io.Reader) (code int, text string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, "http://"+r.page+path, body)
	require.NoError(r.t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return resp.StatusCode, string(b)
}

// probed connects to the port for probes.
func (r *running) probed() (is func(service string) healthv1.HealthCheckResponse_ServingStatus) {
	r.t.Helper()
	conn, err := grpc.NewClient(r.address("probes="), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	return func(service string) healthv1.HealthCheckResponse_ServingStatus {
		r.t.Helper()
		ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
		defer cancel()
		h, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
		require.NoError(r.t, err)
		return h.GetStatus()
	}
}

// shown is what /debug/state shows.
type shown struct {
	View struct {
		Stale       bool   `json:"stale"`
		StaleReason string `json:"stale_reason"`
	} `json:"view"`
	Troubles []struct {
		Kind   string `json:"kind"`
		Severe bool   `json:"severe"`
		What   string `json:"what"`
	} `json:"troubles"`
	Problems []string `json:"problems"`
	Workers  []struct {
		ID       string      `json:"worker_id"`
		Role     string      `json:"role"`
		Engine   string      `json:"engine"`
		Endpoint string      `json:"endpoint"`
		Models   []string    `json:"models"`
		Ranks    []shownRank `json:"ranks"`
		Facts    *struct {
			State    string `json:"state"`
			URL      string `json:"url"`
			Failures int    `json:"failures"`
			Error    string `json:"error"`
		} `json:"facts"`
	} `json:"workers"`
}

type shownRank struct {
	IndexBlocks int `json:"index_blocks"`
	Events      *struct {
		State    string     `json:"state"`
		Last     *uint64    `json:"last_sequence"`
		AsOf     *time.Time `json:"as_of"`
		Degraded bool       `json:"degraded"`
		Reason   string     `json:"reason"`
	} `json:"kv_events"`
}

func (r *running) shown() (s shown) {
	r.t.Helper()
	require.NoError(r.t, json.Unmarshal([]byte(r.get("/debug/state")), &s))
	return s
}
