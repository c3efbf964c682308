package route

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// untold returns four aggregated workers: 1 serves m, 2 serves n, of 3 and 4 no engine has
// told what they serve.
func untold() []*worker.Worker {
	ws := routetest.Aggregated(routetest.Workers())
	ws[0].Deployment, ws[1].Deployment = "m", "n"
	ws[1].Models = []string{"n"}
	for _, w := range ws[2:] {
		w.Engine, w.Models, w.BlockSize, w.FactsUnknown = "", nil, 0, true
	}
	return ws
}

func passing(c *Config) { c.PassUnknown = true }

// served decides a request, and returns who serves it, or the code of the refusal.
func (r *rig) served(req Request) (worker.ID, string) {
	r.t.Helper()
	req.Now = time.Now()
	q, f := r.Ask(req)
	if f != nil {
		return 0, reasonIn(f)
	}
	sc := NewScratch()
	p, ok := q.Prompt()
	if !ok {
		p, ok = r.resolver.Fast(q.Query(), &sc.Tokens)
		require.True(r.t, ok)
	}
	d, f := r.Decide(q, p, sc, time.Now())
	if f != nil {
		return 0, reasonIn(f)
	}
	require.NotZero(r.t, d.BlockSize)
	return d.Decode.Rank.ID, ""
}

// generation is a completion of a model, each time with another prompt.
func (r *rig) generation(model string) Request {
	r.t.Helper()
	body := []byte(`{"model":"` + model + `","prompt":"` + rand.Text() + ` one two three four five six seven eight"}`)
	req := Request{Scan: new(openai.Request), Body: body}
	require.NoError(r.t, openai.Scan(openai.Completions, body, req.Scan))
	return req
}

func TestAModelThatNobodyIsKnownToServeIsForThoseWhoHaveNotTold(t *testing.T) {
	r := newRig(t, untold(), passing)
	seen := map[worker.ID]bool{}
	for range 24 {
		id, code := r.served(r.generation("who"))
		require.Empty(t, code)
		seen[id] = true
	}
	require.Equal(t, map[worker.ID]bool{3: true, 4: true}, seen, "by load, and none of those that serve others")
	id, code := r.served(r.generation("m"))
	require.Empty(t, code)
	require.Equal(t, worker.ID(1), id)

	_, code = newRig(t, untold(), nil).served(r.generation("who"))
	require.Equal(t, "no_worker", code, "they may serve it")
	_, code = newRig(t, untold()[:2], nil).served(r.generation("who"))
	require.Equal(t, "model_not_found", code, "each has told")
	_, code = newRig(t, untold()[:2], passing).served(r.generation("who"))
	require.Equal(t, "model_not_found", code, "each has told")
}

// TestAModelWhoseWorkersHaveLeftMayBeWhatTheNewOnesServe: a pod that was replaced.
func TestAModelWhoseWorkersHaveLeftMayBeWhatTheNewOnesServe(t *testing.T) {
	ws := untold()
	for pass, want := range map[bool]string{true: "", false: "no_worker"} {
		r := newRig(t, ws, func(c *Config) {
			c.Board, c.PassUnknown = routetest.Board(time.Now(), ws, ws[1:]), pass
		})
		_, code := r.served(r.generation("m"))
		require.Equal(t, want, code)
	}
}

// TestAWorkerThatHasNotToldMayBeNamed, whatever model the request is for: the picker that
// names it may know more.
func TestAWorkerThatHasNotToldMayBeNamed(t *testing.T) {
	for _, model := range []string{"who", "m", "n"} {
		for _, change := range []func(*Config){nil, passing} {
			r := newRig(t, untold(), change)
			req := r.generation(model)
			req.Trust = pin.Direct
			for _, at := range []string{"127.0.0.1:40002", "127.0.0.1:40003"} {
				req.Named = []pin.Header{{Name: "x-gateway-destination-endpoint", Value: at}}
				id, code := r.served(req)
				require.Empty(t, code)
				w, _ := r.cfg.Board.Load().RankAt(endpointAt(t, at).AddrPort())
				require.Equal(t, w.ID, id)
			}
			req.Named = []pin.Header{{Name: "x-gateway-destination-endpoint", Value: "127.0.0.1:40001"}}
			_, code := r.served(req)
			if model == "n" {
				require.Empty(t, code)
			} else {
				require.NotEmpty(t, code, "one that has told serves what it has told")
			}
		}
	}
}

func endpointAt(t *testing.T, s string) worker.Endpoint {
	t.Helper()
	e, err := worker.ParseEndpoint(s)
	require.NoError(t, err)
	return e
}

// TestABodyThatNamesNoModelGoesToOneWorkerOfAll on a path that is not read.
func TestABodyThatNamesNoModelGoesToOneWorkerOfAll(t *testing.T) {
	body := func() Request { return Request{Passing: "/v1/anything", Scan: new(openai.Request)} }
	r := newRig(t, untold(), passing)
	held := map[worker.ID]bool{}
	for _, req := range []Request{body(), {Passing: "/health"}} {
		clear(held)
		for range 60 {
			id, code := r.served(req)
			require.Empty(t, code)
			held[id] = true
		}
		require.Len(t, held, 4, "by load")
	}
	_, code := newRig(t, untold(), nil).served(body())
	require.Equal(t, "missing_field", code)

	ws := untold()
	for _, w := range ws {
		w.Namespace = "elsewhere"
	}
	for _, req := range []Request{body(), {Passing: "/health"}} {
		_, code = newRig(t, ws, passing).served(req)
		require.Equal(t, "no_worker", code)
	}
}

// TestSeveralNamesOfTheSameWorkersAreOneModel, the first of them: an adapter, or a second
// served name, changes nothing for a body that names no model.
func TestSeveralNamesOfTheSameWorkersAreOneModel(t *testing.T) {
	ws := routetest.Workers()
	for _, w := range ws {
		w.Models = []string{"zeta", "alpha"}
	}
	for _, w := range []*worker.Worker{ws[0], ws[3]} {
		w.Models, w.Adapters = append([]string{"lora"}, w.Models...), []string{"lora"}
	}
	ask := func(ws []*worker.Worker) (string, string) {
		r := newRig(t, ws, nil)
		body := []byte(`{"text":"one two three four"}`)
		req := Request{Now: time.Now(), Scan: new(openai.Request), Body: body}
		require.NoError(t, openai.Scan(openai.Generate, body, req.Scan))
		q, f := r.Ask(req)
		if f != nil {
			return "", reasonIn(f)
		}
		return q.pool.Key.Model, ""
	}
	model, code := ask(ws)
	require.Equal(t, []string{"zeta", ""}, []string{model, code})
	ws[1].Models = []string{"zeta"}
	_, code = ask(ws)
	require.Equal(t, "missing_field", code, "two models: one worker has but one of the names")
}

// TestNothingIsKnownOfWhatOneThatHasNotToldHolds: it is picked by load, in a pool of its
// deployment's too.
func TestNothingIsKnownOfWhatOneThatHasNotToldHolds(t *testing.T) {
	ws := untold()
	ws[2].Deployment = "m"
	r := newRig(t, ws, func(c *Config) { c.Aggregated = picker.DefaultParams() })
	seen := map[worker.ID]bool{}
	for range 24 {
		id, code := r.served(r.generation("m"))
		require.Empty(t, code)
		seen[id] = true
	}
	require.Equal(t, map[worker.ID]bool{1: true, 3: true}, seen)
}
