package route

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Who may serve a request of which only the headers count.
func TestWhoServesAPassingRequest(t *testing.T) {
	two := func(ws []*worker.Worker) { ws[0].Models, ws[1].Models = []string{"n"}, []string{"n"} }
	pairs := func(ws []*worker.Worker) { ws[1].Models, ws[3].Models = []string{"n"}, []string{"n"} }
	alone := func(ws []*worker.Worker) { ws[3].AcceptsAggregated = true }
	pair := []worker.Role{worker.Prefill, worker.Prefill, worker.Decode, worker.Decode}
	all := slices.Repeat([]worker.Role{worker.Aggregated}, 4)
	for _, c := range []struct {
		name       string
		roles      []worker.Role
		change     func([]*worker.Worker)
		enforced   bool
		allow      string
		bare       *Refusal // nil: served
		body       string   // the code of the same with a body that names no model
		decodeOnly bool     // of headers alone
		from       string   // who serves these, if it is told by the model
	}{
		{name: "one model", roles: all, from: "m"},
		{name: "several models: only headers may go to any", roles: all, change: two, body: "missing_field"},
		{name: "… and to one that is allowed", roles: all, change: two, allow: "127.0.0.1:40000", body: "missing_field", from: "n"},
		{name: "… whichever it is", roles: all, change: two, allow: "127.0.0.1:40003", body: "missing_field", from: "m"},
		{name: "enforced: a body may be a generation", roles: all, enforced: true, body: "disaggregation_enforced"},
		{name: "who decodes may be asked, not for a generation", roles: pair, decodeOnly: true, body: "no_aggregated_worker"},
		{name: "… that is allowed", roles: pair, change: pairs, allow: "127.0.0.1:40002", decodeOnly: true, body: "missing_field", from: "m"},
		{name: "… of whichever model", roles: pair, change: pairs, allow: "127.0.0.1:40003", decodeOnly: true, body: "missing_field", from: "n"},
		{name: "decode that serves alone", roles: pair, change: alone},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws := routetest.Workers()
			for i, role := range c.roles {
				ws[i].Role = role
			}
			if c.change != nil {
				c.change(ws)
			}
			r := newRig(t, ws, func(cfg *Config) { cfg.Policy.Rules.Enforced = c.enforced })
			req := Request{Now: time.Now(), Passing: "/health"}
			if c.allow != "" {
				req.Subset = setOf(c.allow)
			}
			q, f := r.Ask(req)
			require.Equal(t, c.bare, f)
			require.Equal(t, c.decodeOnly, q.decodeOnly)
			require.Equal(t, "/health", q.req.Passing)
			require.NotZero(t, q.query.BlockSize)
			if c.from != "" {
				id, code := r.served(req)
				require.Empty(t, code)
				require.Contains(t, ws[id-1].Models, c.from)
			}
			req.Passing, req.Scan = "/v1/responses", new(openai.Request)
			q, f = r.Ask(req)
			if c.body != "" {
				require.Equal(t, c.body, reasonIn(f))
				return
			}
			require.Nil(t, f)
			require.False(t, q.decodeOnly)
		})
	}
}

// Nobody is there, or nobody that could be asked.
func TestNobodyServesAPassingRequest(t *testing.T) {
	ws := routetest.Workers()
	r := newRig(t, ws[:2], nil) // prefill alone
	for _, bare := range []bool{true, false} {
		scan := new(openai.Request)
		if bare {
			scan = nil
		}
		_, f := r.Ask(Request{Now: time.Now(), Passing: "/v1/responses", Scan: scan})
		require.Equal(t, NoAggregated, f.Reason, bare)
	}
	r = newRig(t, ws, func(c *Config) { c.Policy.Namespace = "elsewhere" })
	_, f := r.Ask(Request{Now: time.Now(), Passing: "/health"})
	require.Equal(t, NoWorker, f.Reason)
	r = newRig(t, nil, nil)
	_, f = r.Ask(Request{Now: time.Now(), Passing: "/health"})
	require.Equal(t, NoWorker, f.Reason)
}
