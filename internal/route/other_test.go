package route

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/discovery"
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
		{name: "enforced: a body may be a generation", roles: all, enforced: true, body: "needs_aggregated_worker"},
		{name: "who decodes may be asked, not for a generation", roles: pair, decodeOnly: true, body: "needs_aggregated_worker"},
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
	_, f := r.Ask(Request{Now: time.Now(), Passing: "/v1/embeddings", Scan: new(openai.Request)})
	require.Equal(t, NeedsAlone, f.Reason)
	r = newRig(t, ws, func(c *Config) { c.Policy.Namespace = "elsewhere" })
	_, f = r.Ask(Request{Now: time.Now(), Passing: "/health"})
	require.Equal(t, NoWorker, f.Reason)
	r = newRig(t, nil, nil)
	_, f = r.Ask(Request{Now: time.Now(), Passing: "/health"})
	require.Equal(t, NoWorker, f.Reason)
}

// TestWhatWaitingCannotMendIsSaid: a request that only one worker alone could serve is
// told to come back while such a worker is known or was lately, and else what is wrong.
func TestWhatWaitingCannotMendIsSaid(t *testing.T) {
	now := time.Now()
	able := func(ws []*worker.Worker) []*worker.Worker {
		ws[3].AcceptsAggregated = true
		return ws
	}
	draining := func(ws []*worker.Worker) []*worker.Worker {
		able(ws)[3].Draining = true
		return ws
	}
	none := routetest.Workers
	for _, c := range []struct {
		name    string
		before  []*worker.Worker // the set before the present one; nil: the plugin has just begun
		ws      []*worker.Worker
		path    string
		after   time.Duration // since the present set came
		rules   func(*Config)
		refusal Refusal
	}{
		{name: "engines serve the path, none of these workers ever could", ws: none(), path: "/v1/embeddings", refusal: Refusal{Reason: NeedsAlone, Path: "/v1/embeddings"}},
		{name: "no engine serves the path", ws: none(), path: "/chat/completions", refusal: Refusal{Reason: UnknownPath, Path: "/chat/completions"}},
		{name: "a worker that could was there", before: able(none()), ws: none(), path: "/v1/embeddings", after: 29 * time.Minute, refusal: Refusal{Reason: NoAggregated}},
		{name: "… on whichever path, since it may serve more", before: able(none()), ws: none(), path: "/anything", refusal: Refusal{Reason: NoAggregated}},
		{name: "… long ago", before: able(none()), ws: none(), path: "/v1/embeddings", after: 31 * time.Minute, refusal: Refusal{Reason: NeedsAlone, Path: "/v1/embeddings"}},
		{name: "a worker that could drains", ws: draining(none()), path: "/v1/embeddings", after: time.Hour, refusal: Refusal{Reason: NoAggregated}},
		{name: "a worker that could may not", ws: able(none()), path: "/v1/embeddings", rules: func(c *Config) { c.Policy.Rules.Enforced = true }, refusal: Refusal{Reason: NeedsAlone, Path: "/v1/embeddings"}},
		{name: "the model is never split", ws: none(), rules: func(c *Config) { c.Policy.NeverSplit = map[string]bool{"m": true} }, refusal: Refusal{Reason: NeedsAlone}},
		{name: "… and was served", before: able(none()), ws: none(), rules: func(c *Config) { c.Policy.NeverSplit = map[string]bool{"m": true} }, refusal: Refusal{Reason: NoAggregated}},
		{name: "prefill may come", ws: none()[2:], refusal: Refusal{Reason: NoAggregated}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.ws, func(cfg *Config) {
				if c.before != nil {
					cfg.Board = routetest.Board(now, c.before)
					set, err := worker.NewSnapshot(2, c.ws)
					require.NoError(t, err)
					cfg.Board.Follow(set, discovery.Change{}, now)
				}
				if c.rules != nil {
					c.rules(cfg)
				}
			})
			_, f := r.ask(`{"model":"m","prompt":"x"}`, func(req *Request) { req.Passing, req.Now = c.path, now.Add(c.after) })
			require.Equal(t, &c.refusal, f)
		})
	}
}
