package extproc

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// mixed returns routetest.Workers of two engines: 1 and 3 run the first, 2 and 4 the second.
func mixed(t *testing.T, first, second worker.Engine, change func(*worker.Worker)) fixed {
	ws := routetest.Workers()
	for i, w := range ws {
		w.Engine = []worker.Engine{first, second}[i%2]
		if w.Engine != worker.SGLang {
			w.Bootstrap = worker.Bootstrap{}
		}
		if change != nil {
			change(w)
		}
	}
	return fixed(ws)
}

const twoGenerations = `{"model":"m","prompt":[[1,2,3,4],[5,6,7,8]]}`

// In a pool of two engines the serving pair decides how KV is handed over, and not the first
// worker of the pool.
func TestOfTwoEnginesThePairSaysHowItHandsOver(t *testing.T) {
	alone := func(w *worker.Worker) { w.AcceptsAggregated = w.Role == worker.Decode && w.Engine == worker.VLLM }
	pair := []string{"x-prefill-instance-id", "2", "x-worker-instance-id", "4"}
	for name, row := range map[string]struct {
		first, second worker.Engine
		listener      bool
		change        func(*worker.Worker)
		filter        []string
		headers       []string
		body          string
		want          string // prefill > decode, decode alone, or status, code and param of the refusal
	}{
		"named, it meets; the pool begins with one that prefills first": {
			worker.VLLM, worker.SGLang, true, nil, direct(), pair, twoGenerations, "2 > 4",
		},
		"named, it meets; and there is no listener": {
			worker.VLLM, worker.SGLang, false, nil, direct(), pair, eightTokens, "2 > 4",
		},
		"named, it prefills first; the pool begins with one that meets": {
			worker.SGLang, worker.VLLM, true, nil, direct(), pair, twoGenerations, "400 not_disaggregable x-prefill-instance-id",
		},
		"named by addresses": {
			worker.SGLang, worker.VLLM, true, nil, direct(),
			[]string{"x-prefiller-host-port", "127.0.0.1:40001", "x-gateway-destination-endpoint", "127.0.0.1:40003"}, twoGenerations,
			"400 not_disaggregable x-prefiller-host-port",
		},
		"named, it prefills first; and there is no listener": {
			worker.SGLang, worker.VLLM, false, nil, direct(), pair, eightTokens, "501 no_prefill_listener ",
		},
		"decode alone is named, of an engine that meets": {
			worker.VLLM, worker.SGLang, true, nil, []string{routingKey, "prerouted"}, pair[2:], twoGenerations, "2 > 4",
		},
		"decode alone is named, of one that cannot split the request": {
			worker.SGLang, worker.VLLM, true, alone, []string{routingKey, "prerouted"}, pair[2:], twoGenerations, "4",
		},
		"decode alone is named, whose prefill needs a listener": {
			worker.SGLang, worker.VLLM, false, nil, []string{routingKey, "prerouted"}, pair[2:], eightTokens, "501 no_prefill_listener ",
		},
		"who is named is not there": {
			worker.VLLM, worker.SGLang, false, nil, direct(), []string{"x-prefill-instance-id", "9", "x-worker-instance-id", "4"}, eightTokens,
			"404 worker_unknown x-prefill-instance-id",
		},
		"picked: only one engine can split the request": {
			worker.VLLM, worker.SGLang, true, nil, nil, nil, twoGenerations, "2 > 4",
		},
		"picked: only one engine needs no listener": {
			worker.VLLM, worker.SGLang, false, nil, nil, nil, eightTokens, "2 > 4",
		},
		"picked: only one engine needs no listener, the pool begins with it": {
			worker.SGLang, worker.VLLM, false, nil, nil, nil, eightTokens, "1 > 3",
		},
		"picked: no engine can split the request": {
			worker.TensorRTLLM, worker.VLLM, true, nil, nil, nil, twoGenerations, "400 not_disaggregable prompt",
		},
		"picked: no engine can split the request, and one worker can do without": {
			worker.TensorRTLLM, worker.VLLM, true, alone, nil, nil, twoGenerations, "4",
		},
		"picked: one engine has nobody for decode": {
			worker.VLLM, worker.SGLang, false, func(w *worker.Worker) { w.Draining = w.ID == 4 }, nil, nil, eightTokens, "501 no_prefill_listener ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReplicaOf(t, "a", mixed(t, row.first, row.second, row.change), func(c *Config) {
				c.StartTimeout, c.Prefill.Mode, c.Decode.Mode = time.Minute, picker.RoundRobin, picker.RoundRobin
				if row.listener {
					c.PrefillListener = "unix:///nowhere/prefill.sock"
				}
			})
			for range 3 { // with each turn of the cursor
				require.Equal(t, row.want, whoServes(t, r, row.body, row.filter, row.headers))
			}
			r.forgetLegs()
			r.requireIdle()
		})
	}
}

// If the sender of a leg of the plugin's own panics, only its request ends, with a typed
// error.
func TestAPanicWhileALegIsSentEndsItsRequestOnly(t *testing.T) {
	tele, err := telemetry.New(telemetry.Config{})
	require.NoError(t, err)
	srv := &Server{legs: t.Context(), log: slog.New(slog.DiscardHandler), bodies: budget.New(0)}
	srv.cfg.Telemetry = tele.Instruments
	s := &mainStream{stream: stream{srv: srv}}
	events := make(chan leg.Event, 2)
	s.act.handle = func(ev *notice) { events <- ev.Event }
	s.askPrefill(&leg.Effect{Wait: time.Minute}, false) // without a client to send it
	ev := <-events
	require.Equal(t, leg.EventPrefilled, ev.Kind)
	require.ErrorIs(t, ev.Answer.Err, errPanicked)
	s.m = *routedBy(&leg.Plan{Disaggregated: true, Kind: vllm.HandOff})
	require.Contains(t, reportsOf(s.m.Step(testStart, &ev)), leg.Report{State: leg.Failed, Reason: blame.NotSent, Said: "no answer at /v1/completions"})
	s.m, srv.legClient = *routedBy(new(leg.Plan)), new(legClient)
	s.collect(&leg.Effect{}) // without a view to look decode up in
	require.Equal(t, leg.EventCollected, (<-events).Kind)
	srv.senders.close()
	page := httptest.NewRecorder()
	tele.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Contains(t, page.Body.String(), `baton_panics_recovered_total{where="prefill_sender"} 1`)
	require.Contains(t, page.Body.String(), `baton_panics_recovered_total{where="collect_sender"} 1`)
	require.Contains(t, page.Body.String(), `outcome="collect_failed"`)
}

// If no pair of the pool can serve, the refusal says so, and no pick is tried.
func TestEnginesWithoutACommonHandOffServeNothing(t *testing.T) {
	split := func(accepts bool, drains worker.ID) fixed {
		ws := mixed(t, worker.VLLM, worker.VLLM, func(w *worker.Worker) { w.AcceptsAggregated, w.Draining = accepts, w.ID == drains })
		ws[2].Engine, ws[3].Engine = worker.SGLang, worker.SGLang
		if drains != 0 {
			ws[drains-1].Engine = map[worker.Engine]worker.Engine{worker.SGLang: worker.VLLM, worker.VLLM: worker.SGLang}[ws[drains-1].Engine]
		}
		return ws
	}
	for name, row := range map[string]struct {
		accepts, fallback bool
		drains            worker.ID // this worker, which has the hand-off of the others' side
		filter, headers   []string
		want              string
	}{
		"a prefill that could drains":  {drains: 1, want: "503 no_prefill_worker "},
		"a decode that could drains":   {drains: 4, want: "503 no_decode_worker "},
		"picked":                       {want: "501 no_common_handoff "},
		"picked, one worker could":     {accepts: true, want: "501 no_common_handoff "},
		"picked, one worker may":       {accepts: true, fallback: true, want: "3"},
		"a pair is named":              {filter: direct(), headers: []string{"x-prefill-instance-id", "1", "x-worker-instance-id", "3"}, want: "400 workers_do_not_fit x-worker-instance-id"},
		"a worker that is not there":   {filter: direct(), headers: []string{"x-prefill-instance-id", "9", "x-worker-instance-id", "3"}, want: "404 worker_unknown x-prefill-instance-id"},
		"decode is named, one may":     {accepts: true, fallback: true, filter: []string{routingKey, "prerouted"}, headers: []string{"x-worker-instance-id", "3"}, want: "501 no_common_handoff "},
		"decode is named, nothing may": {filter: []string{routingKey, "prerouted"}, headers: []string{"x-worker-instance-id", "3"}, want: "501 no_common_handoff "},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReplicaOf(t, "a", split(row.accepts, row.drains), func(c *Config) {
				c.PrefillListener, c.FallbackAggregated, c.Aggregated.Mode = "unix:///nowhere/prefill.sock", row.fallback, picker.RoundRobin
			})
			require.Equal(t, row.want, whoServes(t, r, eightTokens, row.filter, row.headers))
			r.requireIdle()
		})
	}
}

// models.NAME.disaggregation: off. A request that names a prefill worker is refused, since
// that worker would not be used. Enforced disaggregation does not apply to the model.
func TestAModelThatIsNeverSplit(t *testing.T) {
	for name, row := range map[string]struct {
		accepts         bool
		filter, headers []string
		want            string
	}{
		"one worker serves":          {accepts: true, want: "3"},
		"nobody can":                 {want: "501 needs_aggregated_worker "},
		"decode is named":            {accepts: true, filter: direct(), headers: []string{"x-worker-instance-id", "4"}, want: "4"},
		"prefill is named, too":      {accepts: true, filter: direct(), headers: []string{"x-prefill-instance-id", "1", "x-worker-instance-id", "4"}, want: "400 not_disaggregable x-prefill-instance-id"},
		"decode is named, it cannot": {filter: []string{routingKey, "prerouted"}, headers: []string{"x-worker-instance-id", "4"}, want: "501 needs_aggregated_worker "},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReplicaOf(t, "a", mixed(t, worker.SGLang, worker.SGLang, func(w *worker.Worker) { w.AcceptsAggregated = row.accepts }), func(c *Config) {
				c.NeverSplit, c.EnforceDisagg, c.Aggregated.Mode = map[string]bool{"m": true}, true, picker.RoundRobin
			})
			require.Equal(t, row.want, whoServes(t, r, eightTokens, row.filter, row.headers))
			r.requireIdle()
		})
	}
}

// whoServes sends one request. It returns prefill > decode, decode alone, or status, code
// and param.
func whoServes(t *testing.T, r *replica, body string, filter, headers []string) string {
	t.Helper()
	p := r.through(filter...)
	defer p.cancel()
	defer r.accessLog()
	m := p.ask(body, headers...)
	if m.GetRequestBody() == nil {
		status, code, param := codeOf(t, m)
		return fmt.Sprint(status, " ", code, " ", param)
	}
	set, _ := routed(t, m)
	if at := set["x-prefill-instance-id"]; at != "" {
		return at + " > " + set["x-worker-instance-id"]
	}
	return set["x-worker-instance-id"]
}
