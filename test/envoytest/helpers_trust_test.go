//go:build e2e

package envoytest

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// got returns every generation request that a worker has received.
func (f *fleet) got(w *stack.Worker) []enginesim.Request {
	f.t.Helper()
	rs, err := w.Sim.Requests(f.ctx, 0)
	require.NoError(f.t, err)
	return rs
}

// gotAll returns what a group of workers has received.
func (f *fleet) gotAll(ws []*stack.Worker) (out []enginesim.Request) {
	f.t.Helper()
	for _, w := range ws {
		out = append(out, f.got(w)...)
	}
	return out
}

// ended waits until what a group of workers has received has ended, and returns
// it: a client may have its answer before the worker has noted its end.
func (f *fleet) ended(ws []*stack.Worker) (all []enginesim.Request) {
	f.t.Helper()
	f.await("every request to have ended", func() bool {
		all = f.gotAll(ws)
		return !slices.ContainsFunc(all, func(r enginesim.Request) bool { return r.Ended.IsZero() })
	})
	return all
}

// legs returns the two halves of the only request that has been served.
func (f *fleet) legs() (prefill, decode enginesim.Request) {
	f.t.Helper()
	p, d := f.ended(f.prefill), f.ended(f.decode)
	require.Len(f.t, p, 1, "requests at prefill workers")
	require.Len(f.t, d, 1, "requests at decode workers")
	return p[0], d[0]
}

// duplex reports whether the fleet streams bodies through the plugin.
func (f *fleet) duplex() bool { return strings.HasSuffix(f.t.Name(), "/full-duplex") }

// forget makes workers forget what they have received.
func (f *fleet) forget() {
	f.t.Helper()
	for _, w := range f.workers {
		require.NoError(f.t, w.Sim.Reset(f.ctx))
	}
}

// do sends any request to Envoy.
func (f *fleet) do(method, path string, body io.Reader, header http.Header) *reply {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.envoy.URL+path, body)
	require.NoError(f.t, err)
	if header != nil {
		req.Header = header
	}
	return roundTrip(client, req)
}

// roundTrip makes a request and reads its answer. A body is JSON unless the request says what
// it is: engines refuse one without a type.
func roundTrip(c *http.Client, req *http.Request) *reply {
	r := &reply{}
	if req.Body != nil && req.Header.Get("Content-Type") == "" {
		req.Header = req.Header.Clone()
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.Do(req)
	if err != nil {
		r.err = err
		return r
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	r.status, r.header, r.body, r.err = resp.StatusCode, resp.Header, string(b), err
	return r
}

// errorShape is OpenAI's error body.
type errorShape struct {
	Error *struct {
		Message string
		Type    string
		Param   *string
		Code    *string
	}
}

// requireError checks that r is an error in OpenAI's shape with the code.
func requireError(t *testing.T, r *reply, status int, code string) {
	t.Helper()
	require.NoError(t, r.err)
	require.Equal(t, status, r.status, r.body)
	require.True(t, strings.HasPrefix(r.header.Get("Content-Type"), "application/json"), "content-type %q", r.header.Get("Content-Type"))
	var e errorShape
	require.NoError(t, json.Unmarshal([]byte(r.body), &e), r.body)
	require.NotNil(t, e.Error, r.body)
	require.NotEmpty(t, e.Error.Message)
	require.NotEmpty(t, e.Error.Type)
	require.NotNil(t, e.Error.Code, r.body)
	require.Equal(t, code, *e.Error.Code, r.body)
	for name := range r.header {
		require.False(t, strings.HasPrefix(strings.ToLower(name), "x-baton-"), "the client sees %s", name)
	}
}

// canary is an address that nobody may ever be sent to.
type canary struct {
	addr     string
	contacts atomic.Int64
}

func newCanary(t *testing.T) *canary {
	t.Helper()
	l := listen(t)
	c := &canary{addr: l.Addr().String()}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"canary":true}`)
	}))
	s.Listener.Close()
	s.Listener = countingListener{l, &c.contacts}
	s.Start()
	t.Cleanup(s.Close)
	return c
}

type countingListener struct {
	net.Listener
	n *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

// fake is an aggregated worker of the test's own making, for answers that no
// engine would give.
func fake(t *testing.T, id worker.ID, h http.HandlerFunc) *stack.Worker {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	e, err := worker.ParseEndpoint(strings.TrimPrefix(s.URL, "http://"))
	require.NoError(t, err)
	return &stack.Worker{Info: &worker.Worker{
		ID: id, Role: worker.Aggregated, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"},
		DPSize: 1, BlockSize: 16, AcceptsAggregated: true,
	}}
}

// publishAndWait publishes a set and waits until the plugin's view is that.
func (f *fleet) publishAndWait(ws ...*stack.Worker) {
	f.t.Helper()
	before := f.metric("baton_view_revision")
	f.publish(ws...)
	f.await("the plugin to see the workers", func() bool { return f.metric("baton_view_revision") > before })
}

// adminGet returns a page of the plugin's admin address.
func (f *fleet) adminGet(path string) string {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.plugin.Admin+path, nil)
	require.NoError(f.t, err)
	r := roundTrip(client, req)
	require.NoError(f.t, r.err)
	require.Equal(f.t, http.StatusOK, r.status, r.body)
	return r.body
}

// choiceSeen and decisionSeen are what tests read of /debug/decisions.
type choiceSeen struct {
	WorkerID string `json:"worker_id"`
	DPRank   int    `json:"dp_rank"`
	Mode     string `json:"mode"`
	Reason   string `json:"reason"`
	Overlap  int    `json:"overlap_blocks"`
	Table    []struct {
		WorkerID  string `json:"worker_id"`
		Eligible  bool   `json:"eligible"`
		Predicted int    `json:"predicted_blocks"`
		Note      string `json:"note"`
	} `json:"table"`
}

type decisionSeen struct {
	RequestID   string      `json:"request_id"`
	Attempt     int         `json:"attempt"`
	TokenSource string      `json:"token_source"`
	TokenReason string      `json:"token_reason"`
	ISLTokens   int         `json:"isl_tokens"`
	Blocks      int         `json:"prompt_blocks"`
	Outcome     string      `json:"outcome"`
	Detail      string      `json:"detail"`
	Leg         string      `json:"prefill_leg"`
	LegDetail   string      `json:"prefill_leg_detail"`
	Prefill     *choiceSeen `json:"prefill"`
	Decode      *choiceSeen `json:"decode"`
}

// decisions returns what the plugin remembers, newest first.
func (f *fleet) decisions() []decisionSeen {
	f.t.Helper()
	var list struct{ Decisions []decisionSeen }
	body := f.adminGet("/debug/decisions?n=200")
	if strings.HasPrefix(strings.TrimSpace(body), "[") {
		require.NoError(f.t, json.Unmarshal([]byte(body), &list.Decisions))
	} else {
		require.NoError(f.t, json.Unmarshal([]byte(body), &list))
	}
	return list.Decisions
}
