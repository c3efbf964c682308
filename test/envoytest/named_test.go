//go:build e2e

package envoytest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

const above53 = "9007199254740993" // 2^53+1, which no float64 holds

func trusting(routing string) envoy.Params { return envoy.Params{Routing: routing} }

// with adds members to a completion's body.
func with(prompt string, tokens int, members string) string {
	return strings.TrimSuffix(completion(prompt, tokens, false), "}") + "," + members + "}"
}

// served returns which workers have served the one request since the last
// forget.
func (f *fleet) served() (prefill, decode string) {
	f.t.Helper()
	for _, w := range f.workers {
		for range f.got(w) {
			if w.Info.Role == worker.Prefill {
				prefill += w.Info.ID.String()
			} else {
				decode += w.Info.ID.String()
			}
		}
	}
	return prefill, decode
}

// Ids of both dialects, addresses and members of nvext (docs/behaviour.md#named-workers).
func TestARequestMayNameItsWorkers(t *testing.T) {
	t.Parallel()
	for _, routing := range []string{"prerouted", "direct"} {
		both(t, layout{prefill: 2, decode: 2, envoy: trusting(routing)}, func(t *testing.T, f *fleet) {
			p, d := f.prefill[1].Info, f.decode[1].Info
			for i, pair := range []struct {
				members string
				headers []string
			}{
				{"", []string{"x-worker-instance-id", "201", "x-prefill-instance-id", "101"}},
				{"", []string{"x-dynamo-worker-instance-id", "201", "x-dynamo-prefill-instance-id", "101", "x-dynamo-dp-rank", "0", "x-dynamo-prefill-dp-rank", "4294967295"}},
				{"", []string{"x-gateway-destination-endpoint", d.Endpoint.String(), "x-prefiller-host-port", p.Endpoint.String() + ",192.0.2.1:80"}},
				{`"nvext":{"decode_worker_id":201,"prefill_worker_id":101,"dp_rank":0}`, nil},
				{`"nvext":{"backend_instance_id":200,"prefill_worker_id":101}`, []string{"x-worker-instance-id", "201", "x-data-parallel-rank", "0"}},
			} {
				f.forget()
				prompt := fmt.Sprintf("pair %d of the named", i)
				body := completion(prompt, 4, i%2 == 1)
				if pair.members != "" {
					body = with(prompt, 4, pair.members)
				}
				requireAnswer(t, f.send(t.Context(), "/v1/completions", body, pair.headers...), prompt, 4)
				prefill, decode := f.served()
				require.Equal(t, "101", prefill)
				require.Equal(t, "201", decode)
				seen := f.got(f.decode[1])[0].Headers
				require.Equal(t, "201", seen.Get("X-Worker-Instance-Id"))
				for _, other := range []string{"X-Dynamo-Worker-Instance-Id", "X-Prefiller-Host-Port", "X-Data-Parallel-Rank", "X-Baton-Picked-Endpoint"} {
					require.Empty(t, seen.Get(other), "only what was decided is told")
				}
			}
			last := f.decisions()[0]
			if routing == "prerouted" {
				f.serveManyHeaders()
			}
			require.Equal(t, map[string]string{"prerouted": "pre-routed", "direct": "direct"}[routing], last.Decode.Mode)
			require.Equal(t, "named", last.Prefill.Reason)
			require.Positive(t, f.metric("baton_decisions_total", `mode="`+last.Decode.Mode+`"`, `reason="named"`, `role="decode"`))
		})
	}
}

// Engines that prefill first take the named pair, too.
func TestANamedPairHandsOver(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 2, envoy: trusting("direct"), simArgs: []string{"--engine", string(worker.VLLM)}}, func(t *testing.T, f *fleet) {
		for _, pair := range [][2]string{{"100", "201"}, {"101", "200"}} {
			f.forget()
			r := f.send(t.Context(), "/v1/completions", completion("hand over", 5, false), "x-prefill-instance-id", pair[0], "x-worker-instance-id", pair[1])
			requireAnswer(t, r, "hand over", 5)
			prefill, decode := f.served()
			require.Equal(t, [2]string{prefill, decode}, pair)
		}
	})
}

// What is not named is picked; what is named stays.
func TestEitherIDMayBeNamedAlone(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 2, envoy: trusting("prerouted")}, func(t *testing.T, f *fleet) {
		for i := range 6 {
			f.forget()
			name := []string{"x-prefill-instance-id", "101"}
			if i%2 == 1 {
				name = []string{"x-worker-instance-id", "201"}
			}
			prompt := fmt.Sprintf("one of two, %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 3, false), name...), prompt, 3)
			prefill, decode := f.served()
			require.Contains(t, []string{prefill, decode}, name[1])
		}
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("none", 3, false)), "none", 3)
	})
}

// strangers are workers that are listed and cannot be what they are named for.
func strangers(t *testing.T, f *fleet) []*stack.Worker {
	add := func(id worker.ID, like *stack.Worker, change func(*worker.Worker)) *stack.Worker {
		w := *like.Info
		w.ID = id
		var err error
		w.Endpoint, err = worker.ParseEndpoint(fmt.Sprintf("127.0.0.99:%d", 1000+id))
		require.NoError(t, err)
		change(&w)
		return &stack.Worker{Info: &w}
	}
	return append([]*stack.Worker{
		add(1, f.decode[0], func(w *worker.Worker) { w.Models = []string{"other"} }),
		add(2, f.decode[0], func(w *worker.Worker) { w.Namespace = "east" }),
		add(3, f.decode[0], func(w *worker.Worker) { w.Draining = true }),
		add(4, f.decode[0], func(w *worker.Worker) { w.DPSize = 4 }),
		add(5, f.decode[0], func(w *worker.Worker) { w.Engine = worker.TensorRTLLM }),
		add(6, f.prefill[0], func(w *worker.Worker) { w.Draining = true }),
		add(7, f.prefill[0], func(w *worker.Worker) { w.Bootstrap = worker.Bootstrap{} }),
		add(8, f.decode[0], func(w *worker.Worker) { w.Role = worker.Aggregated }),
	}, f.workers...)
}

// Every wrong choice has its typed error (docs/behaviour.md#named-workers), names what
// is at fault and reaches no worker.
func TestEachWrongChoiceIsSaidWithItsOwnCode(t *testing.T) {
	t.Parallel()
	const d, p = "x-worker-instance-id", "x-prefill-instance-id"
	both(t, layout{prefill: 1, decode: 1, envoy: trusting("direct")}, func(t *testing.T, f *fleet) {
		f.publishAndWait(strangers(t, f)...)
		address := "x-gateway-destination-endpoint"
		for _, tt := range []struct {
			status  int
			code    string
			param   string
			headers []string
		}{
			{400, "worker_not_named", p, []string{d, "200"}},
			{400, "worker_not_named", d, []string{p, "100"}},
			{400, "worker_not_named", d, []string{p, "100", "x-dp-rank", "0"}},
			{400, "worker_not_named", "x-dp-rank", []string{p, "100", d, "4"}},
			{400, "invalid_routing", d, []string{p, "100", d, "two hundred"}},
			{400, "invalid_routing", "x-dynamo-dp-rank", []string{p, "100", d, "200", "x-dynamo-dp-rank", "-1"}},
			{400, "invalid_routing", "x-prefiller-host-port", []string{d, "200", "x-prefiller-host-port", "worker:80"}},
			{400, "routing_conflict", "", []string{p, "100", d, "200", "x-dynamo-worker-instance-id", "201"}},
			{400, "routing_conflict", "x-gateway-destination-endpoint", []string{p, "100", d, "200", address, f.prefill[0].Info.Endpoint.String()}},
			{404, "worker_unknown", d, []string{p, "100", d, above53}},
			{404, "worker_unknown", p, []string{p, above53, d, "200"}},
			{404, "worker_unknown", "x-gateway-destination-endpoint", []string{p, "100", address, "192.0.2.1:80"}},
			{400, "worker_wrong_model", d, []string{p, "100", d, "1"}},
			{400, "worker_wrong_model", d, []string{p, "100", d, "2"}},
			{503, "worker_draining", d, []string{p, "100", d, "3"}},
			{503, "worker_draining", p, []string{p, "6", d, "200"}},
			{503, "worker_not_usable", p, []string{p, "7", d, "200"}},
			{400, "worker_wrong_role", d, []string{p, "100", d, "100"}},
			{400, "worker_wrong_role", d, []string{p, "100", d, "8"}},
			{400, "worker_wrong_role", p, []string{p, "200", d, "200"}},
			{400, "rank_out_of_range", "x-data-parallel-rank", []string{p, "100", d, "4", "x-data-parallel-rank", "4"}},
			{400, "workers_do_not_fit", d, []string{p, "100", d, "5"}},
		} {
			r := f.send(t.Context(), "/v1/completions", completion("hello", 2, false), tt.headers...)
			requireError(t, r, tt.status, tt.code)
			var e struct {
				Error struct{ Param, Message string }
			}
			require.NoError(t, json.Unmarshal([]byte(r.body), &e))
			if tt.param != "" {
				require.Equal(t, tt.param, e.Error.Param, tt.code)
			}
			require.Contains(t, e.Error.Message, e.Error.Param)
			require.Equal(t, tt.status == 503, r.header.Get("Retry-After") != "")
			require.Positive(t, f.metric("baton_failures_total", `code="`+tt.code+`"`))
		}
		r := f.send(t.Context(), "/v1/completions", with("p", 2, `"nvext":{"decode_worker_id":1.5}`), p, "100")
		requireError(t, r, 400, "invalid_routing")
		require.Empty(t, f.gotAll(f.workers), "a refused request reached a worker")
		require.Zero(t, f.metric("baton_fresh_picks_total"))
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("right", 2, false), p, "100", d, "200"), "right", 2)

		f.publishAndWait(f.decode[0])
		r = f.send(t.Context(), "/v1/completions", completion("hello", 2, false), d, "200")
		requireError(t, r, 503, "prefill_gone") // the order of checks: can it be served at all, then who
		alone := *f.decode[0].Info
		alone.ID, alone.AcceptsAggregated = 9, true
		alone.Endpoint, _ = worker.ParseEndpoint("127.0.0.99:80")
		f.publishAndWait(f.decode[0], &stack.Worker{Info: &alone})
		r = f.send(t.Context(), "/v1/completions", completion("hello", 2, false), d, "200")
		requireError(t, r, 503, "worker_needs_prefill")
	})
}

// Where all prefill workers drain, what is named is judged first
// (docs/behaviour.md#named-workers before #nobody-eligible). The rest is in the matrix
// (TestEachCellOfTheMatrixHoldsThroughEnvoy).
func TestWhatIsNamedIsJudgedThoughAllPrefillWorkersDrain(t *testing.T) {
	t.Parallel()
	const d, p = "x-worker-instance-id", "x-prefill-instance-id"
	both(t, layout{prefill: 1, decode: 1, envoy: trusting("direct")}, func(t *testing.T, f *fleet) {
		draining := *f.prefill[0].Info
		draining.Draining = true
		f.publishAndWait(&stack.Worker{Info: &draining}, f.decode[0])
		send := func(headers ...string) *reply {
			return f.send(t.Context(), "/v1/completions", completion("hello", 2, false), headers...)
		}
		requireError(t, send(p, "100", d, "200"), 503, "worker_draining")
		requireError(t, send(d, "200"), 400, "worker_not_named")
		require.Empty(t, f.gotAll(f.workers), "nothing runs")
		f.publishAndWait(f.decode[0])
		requireError(t, send(d, "200"), 503, "prefill_gone")
		f.publishAndWait(f.prefill[0], f.decode[0])
		requireAnswer(t, send(p, "100", d, "200"), "hello", 2)
	})
}

func TestANamedWorkerThatHasLeftIsGone(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 2, envoy: trusting("prerouted")}, func(t *testing.T, f *fleet) {
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("here", 2, false), "x-worker-instance-id", "201"), "here", 2)
		f.publishAndWait(f.prefill[0], f.decode[0])
		for _, named := range [][]string{{"x-worker-instance-id", "201"}, {"x-gateway-destination-endpoint", f.decode[1].Info.Endpoint.String()}} {
			f.await("the one that has left to be known as such", func() bool {
				r := f.send(t.Context(), "/v1/completions", completion("away", 2, false), named...)
				return r.status == http.StatusServiceUnavailable && strings.Contains(r.body, `"worker_gone"`) && strings.Contains(r.body, named[0])
			})
		}
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("others", 2, false)), "others", 2)
	})
}

// A failure where the workers are named: one typed error, and no second attempt.
func TestAFailureOfANamedWorkerIsOneError(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 2, config: quickFaults, envoy: trusting("direct")}, func(t *testing.T, f *fleet) {
		named := []string{"x-worker-instance-id", "200", "x-prefill-instance-id", "100"}
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultError, Count: 1})
		r := f.send(t.Context(), "/v1/completions", completion("prefill fails", 3, false), named...)
		requireError(t, r, 503, "prefill_failed")
		f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultRefuse, ForMS: 60_000})
		r = f.send(t.Context(), "/v1/completions", completion("decode is away", 3, false), named...)
		requireError(t, r, 503, "decode_unreachable")
		// Set aside, and asked all the same: who names it may know better.
		r = f.send(t.Context(), "/v1/completions", completion("decode is away", 3, false), named...)
		requireError(t, r, 503, "decode_unreachable")
		require.Zero(t, f.metric("baton_fresh_picks_total"))
		for _, d := range f.decisions() {
			require.Equal(t, 1, d.Attempt)
		}
	})
}

// What reaches an ordinary filter chooses nothing, in whatever place it stands.
func TestAClientsBodyNamesNoWorker(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet) {
		for _, m := range []string{"decode_worker_id", "prefill_worker_id", "backend_instance_id", "dp_rank", "prefill_dp_rank", `decode\u005fworker_id`} {
			r := f.send(t.Context(), "/v1/completions", with("p", 2, `"nvext":{"annotations":[],"`+m+`":1}`))
			requireError(t, r, http.StatusBadRequest, "forbidden_field")
		}
		require.Empty(t, f.gotAll(f.workers))
		r := f.send(t.Context(), "/v1/completions", with("mine", 2, `"nvext":{"use_raw_prompt":true}`))
		requireAnswer(t, r, "mine", 2)
	})
}

// Where others may name addresses the plugin alone makes them destinations.
func TestWithThePluginDeadANamedAddressIsNotReached(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, noCheck: true, envoy: trusting("prerouted")}, func(t *testing.T, f *fleet) {
		c := newCanary(t)
		h := http.Header{"Content-Type": {"application/json"}}
		forge(h, c.addr, 0)
		requireError(t, f.do(http.MethodPost, "/v1/completions", strings.NewReader(completion("hello", 2, false)), h), 404, "worker_unknown")
		h = http.Header{"Content-Type": {"application/json"}, "X-Gateway-Destination-Endpoint": {c.addr}, "X-Prefiller-Host-Port": {c.addr}, "X-Prefill-Destination-Endpoint": {c.addr}}
		requireError(t, f.do(http.MethodPost, "/v1/completions", strings.NewReader(completion("hello", 2, false)), h), 404, "worker_unknown")
		require.NoError(t, f.plugin.Kill())
		requireError(t, f.do(http.MethodPost, "/v1/completions", strings.NewReader(completion("hello", 2, false)), h), 503, "router_unavailable")
		require.Zero(t, c.contacts.Load(), "the canary was contacted")
		require.Empty(t, f.gotAll(f.workers))
	})
}

// Row C's query-only mode: who would serve it, and nothing else.
func TestARequestMayAskWhoWouldServeIt(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 1, prefillArgs: []string{"--id", above53}, decodeArgs: []string{"--id", "18446744073709551615"}, envoy: trusting("prerouted")}
	both(t, l, func(t *testing.T, f *fleet) {
		ask := func() *reply {
			return f.send(t.Context(), "/v1/chat/completions",
				`{"model":"m","stream":true,"messages":[{"role":"user","content":"who?"}],"nvext":{"annotations":["query_instance_id:"]}}`)
		}
		r := ask()
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Equal(t, "application/json", r.header.Get("Content-Type"))
		var got struct {
			Object, Model string
			Choices       []any
			NVExt         struct {
				WorkerID map[string]json.Number `json:"worker_id"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(r.body), &got))
		require.Equal(t, map[string]json.Number{
			"prefill_worker_id": above53, "prefill_dp_rank": "0", "decode_worker_id": "18446744073709551615", "decode_dp_rank": "0",
		}, got.NVExt.WorkerID)
		require.Equal(t, "chat.completion", got.Object)
		require.NotNil(t, got.Choices)
		require.Empty(t, f.gotAll(f.workers), "nothing runs")
		require.Zero(t, f.metric("baton_decisions_total"))
		require.Equal(t, "answered", f.decisions()[0].Outcome)

		pending := *f.prefill[0].Info
		pending.Bootstrap = worker.Bootstrap{}
		f.publishAndWait(&stack.Worker{Info: &pending}, f.decode[0])
		requireError(t, f.send(t.Context(), "/v1/completions", completion("p", 1, false)), 503, "prefill_not_ready")
		r = ask()
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Contains(t, r.body, `"worker_id":{"decode_worker_id":18446744073709551615,"decode_dp_rank":0}`)
	})
}

// What was asked can be sent: ids survive the way through a scheduler.
func TestAnAnswerNamesWorkersThatTakeTheRequest(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 2, envoy: trusting("prerouted"), simArgs: []string{"--dp-size", "2"}}, func(t *testing.T, f *fleet) {
		for i := range 4 {
			f.forget()
			prompt := "ask first, then send " + strconv.Itoa(i)
			r := f.send(t.Context(), "/v1/completions", with(prompt, 3, `"nvext":{"annotations":["query_instance_id:"]}`))
			_, rest, found := strings.Cut(r.body, `"worker_id":{`)
			require.True(t, found, r.body)
			ids, _, _ := strings.Cut(rest, "}")
			ids = strings.Replace(ids, "decode_dp_rank", "dp_rank", 1)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", with(prompt, 3, `"nvext":{`+ids+`}`)), prompt, 3)
			prefill, decode := f.served()
			require.Contains(t, ids, `"prefill_worker_id":`+prefill+",")
			require.Contains(t, ids, `"decode_worker_id":`+decode+",")
		}
	})
}

// Where the workers are named, an answer that breaks off after its headers,
// which Envoy alone sees: the same worker would be asked again.
func TestANamedDecodeThatBreaksOffIsAskedOnce(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, envoy: trusting("direct"), noCheck: true}, func(t *testing.T, f *fleet) {
		for range 8 {
			f.forget()
			f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultTruncate, Count: 10})
			r := f.send(t.Context(), "/v1/completions", completion("breaks off", 30, false), "x-worker-instance-id", "200", "x-prefill-instance-id", "100")
			require.True(t, r.err != nil || r.status == http.StatusServiceUnavailable, "%d %v %s", r.status, r.err, r.body)
			require.Len(t, f.got(f.decode[0]), 1)
		}
	})
}

// Headers that other routers and workers' sidecars obey are nobody's to set, where
// requests may name their workers, too.
func TestWhoMayNameWorkersSteersNothingElse(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{prefill: 1, decode: 1, envoy: trusting("prerouted")})
	names := []string{
		"X-Kv-Cache-Source-Host-Port", "X-Encoder-Hosts-Ports", "X-Data-Parallel-Host-Port", "X-Dynamo-Routing-Mode", "X-Gateway-Model-Name-Rewrite",
		"X-Llm-D-Model-Name-Rewrite", "Epp-Profile", "Test-Epp-Endpoint-Selection", "Target-Pod",
	}
	headers := []string{"x-worker-instance-id", "200", "x-own", "kept"}
	for _, n := range names {
		headers = append(headers, n, "192.0.2.1:80")
	}
	requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("hi", 2, false), headers...), "hi", 2)
	p, d := f.legs()
	for _, n := range names {
		require.Empty(t, p.Headers.Values(n), n)
		require.Empty(t, d.Headers.Values(n), n)
	}
	require.Equal(t, "kept", d.Headers.Get("X-Own"))
}

// What names a worker and comes twice must say one thing, but for the address that
// Envoy moves to another header: it takes the first.
func TestANameThatComesTwiceMustSayOneThing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{prefill: 1, decode: 2, envoy: trusting("prerouted")})
	ask := func(name, a, b string) *reply {
		f.forget()
		return f.do(http.MethodPost, "/v1/completions", strings.NewReader(completion("hi", 2, false)), http.Header{"Content-Type": {"application/json"}, name: {a, b}})
	}
	requireError(t, ask("X-Worker-Instance-Id", "200", "201"), 400, "routing_conflict")
	requireError(t, ask("X-Prefiller-Host-Port", f.prefill[0].Info.Endpoint.String(), "192.0.2.1:80"), 400, "routing_conflict")
	requireAnswer(t, ask("X-Worker-Instance-Id", "201", "201"), "hi", 2)
	requireAnswer(t, ask("X-Gateway-Destination-Endpoint", f.decode[1].Info.Endpoint.String(), f.decode[0].Info.Endpoint.String()), "hi", 2)
	_, d := f.served()
	require.Equal(t, "201", d)
}
