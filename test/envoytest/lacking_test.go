//go:build e2e

package envoytest

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/envoyfile"
	"github.com/seed-60ae5743/baton/internal/envoyfile/lacking"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// lack is what happens without a part.
type lack struct {
	layout  layout
	instead []string // what is in the file in place of the part, where the default would take minutes to be met
	happens func(t *testing.T, f *fleet)
}

// refused are the parts without which Envoy does not start.
var refused = []string{"internal_listeners", "route", "filter", "first_token", "main_cluster", "workers"}

// unseen are the parts of which no short test can show what is lost, each with the reason.
var unseen = map[string]string{
	"overload":        "memory has to end first: make soak",
	"client_listener": "advised: several settings, of which each has a test of its own",
	"own_replies":     "of Envoy before 1.37: make test-envoys",
	"cors":            "TestWebPagesOfOtherOriginsAreLetInWhereTheConfigurationSaysSo",
	"client_tracing":  "TestOneTraceHoldsEnvoyTheDecisionAndBothLegs",
	"picker":          "examples/direct has it",
	"prefill_leg":     "of the mirrored form; as sync_leg of this one",
	"worker_tls":      "no worker of these tests serves TLS",
	"errors_shown":    "the words of a worker's error are in its own tests",
	"worker_idle":     "a race: the engine has to close in the moment of a request; TestEveryPartOfEveryConfigurationHasItsLimits holds the value",
}

func prefillTakes(ms string) []string { return []string{"--prefill-base-us", ms + "000"} }

// fails says that a request gets a status of Envoy's own.
func fails(prompt string, status ...int) func(*testing.T, *fleet) {
	return func(t *testing.T, f *fleet) {
		require.Contains(t, status, f.send(t.Context(), "/v1/completions", completion(prompt, 2, false)).status)
	}
}

// firstFails says that the first of some requests that is not served gets a status.
func firstFails(n, status int) func(*testing.T, *fleet) {
	return func(t *testing.T, f *fleet) {
		for range n {
			if r := f.send(t.Context(), "/v1/completions", completion("one of some", 2, true)); r.status != http.StatusOK {
				require.Equal(t, status, r.status)
				return
			}
		}
		require.Fail(t, "all were served")
	}
}

var lacks = map[string]lack{
	"client_replies": {happens: func(t *testing.T, f *fleet) {
		r := f.do(http.MethodPost, "/a%2Fb", strings.NewReader("{}"), http.Header{})
		require.NotContains(t, r.body, "proxy_refused")
	}},
	"strip": {happens: func(t *testing.T, f *fleet) {
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("obey", 2, false), "x-data-parallel-host-port", "10.0.0.1:1"), "obey", 2)
		require.True(t, f.workersSee("X-Data-Parallel-Host-Port"))
	}},
	"client_idle": {layout: layout{prefillArgs: prefillTakes("1500")}, instead: []string{"stream_idle_timeout: 0s     # the plugin and", "stream_idle_timeout: 0.3s     # the plugin and"},
		happens: fails("waits for its first byte", http.StatusGatewayTimeout, http.StatusServiceUnavailable)},
	"route_timeout": {layout: layout{prefillArgs: prefillTakes("1500")}, instead: []string{"cluster: main_leg\n                  timeout: 0s", "cluster: main_leg\n                  timeout: 0.4s"},
		happens: func(t *testing.T, f *fleet) {
			for range 3 {
				fails("a long prefill", http.StatusGatewayTimeout, http.StatusServiceUnavailable)(t, f)
			}
			f.await("the plugin to count them as left", func() bool { return f.metric("baton_requests_total", `outcome="client_left"`) == 3 })
			f.await("the plugin to tell of it", func() bool { what, _ := f.says(trouble.TimeLimit); return what != "" })
		}},
	"attempt_count": {happens: func(t *testing.T, f *fleet) {
		for _, w := range f.decode {
			f.fault(w, enginesim.Fault{Mode: enginesim.FaultError, Words: "out of memory"})
		}
		r := f.send(t.Context(), "/v1/completions", completion("each attempt fails", 2, false))
		require.Equal(t, http.StatusBadGateway, r.status)
		f.await("all attempts to count as retried", func() bool {
			d := f.decisions()
			return len(d) == 3 && !slices.ContainsFunc(d, func(d decisionSeen) bool { return d.Outcome != "retried" })
		})
		require.Zero(t, f.outcomes("failed"))
	}},
	"body_kept": {happens: func(t *testing.T, f *fleet) {
		fails(strings.Repeat("word ", 30_000), http.StatusRequestEntityTooLarge)(t, f)
	}},
	"attempt_start": {happens: func(t *testing.T, f *fleet) {
		r := f.do(http.MethodPost, "/v1/completions", strings.NewReader(`{"model": 7}`), http.Header{"Content-Type": {"application/grpc"}})
		require.Equal(t, http.StatusOK, r.status)
		require.Empty(t, r.body)
	}},
	"private_answers": {happens: func(t *testing.T, f *fleet) {
		r := f.send(t.Context(), "/v1/completions", completion("what is private", 2, false))
		require.NotEmpty(t, r.header.Get("x-envoy-upstream-service-time"))
	}},
	"fresh_pick": {happens: func(t *testing.T, f *fleet) {
		require.NoError(t, f.decode[0].Kill())
		firstFails(8, http.StatusServiceUnavailable)(t, f)
	}},
	"main_leg": {happens: fails("nobody takes it", http.StatusServiceUnavailable)},
	"header_room": {happens: func(t *testing.T, f *fleet) {
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, f.withHeaders(86, 1).status)
		f.await("the plugin to tell of it", func() bool { what, _ := f.says(trouble.HeaderLimit); return what != "" })
	}},
	"leg_idle": {layout: layout{prefillArgs: prefillTakes("1500")}, instead: []string{"preserve_external_request_id: true\n          stream_idle_timeout: 0s", "preserve_external_request_id: true\n          stream_idle_timeout: 0.3s"},
		happens: fails("a leg waits for its first byte", http.StatusGatewayTimeout, http.StatusServiceUnavailable)},
	"local_replies": {happens: func(t *testing.T, f *fleet) {
		for _, w := range f.decode {
			require.NoError(t, w.Kill())
		}
		require.NoError(t, f.plugin.Kill())
		r := f.send(t.Context(), "/v1/completions", completion("nobody is there", 2, false))
		require.NotContains(t, r.body, "router_unavailable")
	}},
	"access_log": {happens: func(t *testing.T, f *fleet) {
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("how did it end", 2, true)), "how did it end", 2)
		require.Zero(t, f.metric("baton_requests_total", `outcome="ok"`))
		require.Positive(t, f.metric("baton_worker_decode_requests"))
	}},
	"leg_routes": {instead: []string{"- match: {prefix: \"/\"}\n                route: *to_decode", "- match: {prefix: \"/none\"}\n                route: *to_decode"},
		happens: fails("no way", http.StatusNotFound, http.StatusServiceUnavailable)},
	"gap": {layout: layout{config: "answer: {overdue_base: 300ms}\n"}, happens: func(t *testing.T, f *fleet) {
		for _, w := range f.decode {
			f.fault(w, enginesim.Fault{Mode: enginesim.FaultHang, When: enginesim.Mid})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		r := f.send(ctx, "/v1/completions", completion("it stands still", 8, true))
		require.ErrorIs(t, r.err, context.DeadlineExceeded)
	}},
	"usage": {happens: func(t *testing.T, f *fleet) {
		f.send(t.Context(), "/v1/completions", `{"model": "m", "prompt": "how many", "max_tokens": 2, "stream": true, "stream_options": {"include_usage": true}}`)
		f.await("its end", func() bool { return f.metric("baton_requests_total", `outcome="ok"`) == 1 })
		require.Zero(t, f.metric("baton_time_per_output_token_seconds_count"))
	}},
	"filter_time": {layout: layoutOf(layout{prefillArgs: prefillTakes("1000")}, worker.VLLM),
		happens: fails("a long prefill", http.StatusServiceUnavailable, http.StatusGatewayTimeout)},
	"plugin_retries": {happens: func(t *testing.T, f *fleet) {
		require.NoError(t, f.plugin.Kill())
		fails("the plugin restarts", http.StatusServiceUnavailable)(t, f)
	}},
	"sync_leg": {happens: func(t *testing.T, f *fleet) {
		fails("prefill is not reached", http.StatusServiceUnavailable)(t, f)
		what, _ := f.says(trouble.LegUnreachable)
		require.Contains(t, what, filepath.Join(filepath.Dir(f.plugin.Socket), "prefill.sock"))
		require.Contains(t, what, "no such file")
	}},
	"plugin_cluster":    {happens: fails("where is the plugin", http.StatusServiceUnavailable)},
	"plugin_connection": {happens: fails("the plugin speaks HTTP/2 alone", http.StatusServiceUnavailable)},
	"limits": {instead: []string{"max_requests: 100000", "max_requests: 8"}, happens: func(t *testing.T, f *fleet) {
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultHold, When: enginesim.Before})
		var wg sync.WaitGroup
		var refused atomic.Int64
		for range 20 {
			wg.Go(func() {
				if r := f.send(t.Context(), "/v1/completions", completion("one of many", 1, false)); r.status == http.StatusServiceUnavailable {
					refused.Add(1)
				}
			})
		}
		f.await("one to be refused while eight are in flight", func() bool { return refused.Load() > 0 })
		f.fault(f.prefill[0], enginesim.Fault{})
		wg.Wait()
	}},
	"worker_filters": {happens: func(t *testing.T, f *fleet) {
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("what a worker sees", 2, false)), "what a worker sees", 2)
		require.True(t, f.workersSee("X-Baton-") || f.workersSee("X-Envoy-"))
	}},
}

// workersSee says whether a worker has got a header whose name begins so.
func (f *fleet) workersSee(name string) bool {
	for _, r := range f.gotAll(f.workers) {
		for got := range r.Headers {
			if strings.HasPrefix(http.CanonicalHeaderKey(got), name) {
				return true
			}
		}
	}
	return false
}

// TestWhatIsSaidOfAMissingPartHappens: each part of the list is taken away in turn. The check names it, and what it
// says happens is what happens: with the part the same is served (the tests of this package show it).
func TestWhatIsSaidOfAMissingPartHappens(t *testing.T) {
	t.Parallel()
	if stack.TooOldAsShipped() != "" {
		t.Skip("the templates are another form for this Envoy")
	}
	for _, part := range envoyfile.Parts() {
		id := part.ID
		if unseen[id] != "" {
			continue
		}
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			if strings.HasPrefix(part.Without, "Envoy does not start") || id == "route" {
				require.Contains(t, refused, id)
				whole, err := envoy.Standalone(envoy.Params{PluginSocket: filepath.Join(t.TempDir(), "s")})
				require.NoError(t, err)
				less, err := lacking.Part(whole, id)
				require.NoError(t, err)
				require.NotNil(t, less)
				require.Error(t, stack.ValidateEnvoy(t.Context(), envoyPath, less, t.TempDir()))
				return
			}
			require.NotContains(t, refused, id)
			x, ok := lacks[id]
			require.True(t, ok, "nothing shows what happens without %s", id)
			l := x.layout
			l.prefill, l.decode, l.noCheck = 1, 2, true
			l.patch = func(config string) string {
				less := strings.NewReplacer(x.instead...).Replace(config)
				if len(x.instead) == 0 {
					out, err := lacking.Part([]byte(config), id)
					require.NoError(t, err)
					less = string(out)
				}
				name := filepath.Join(t.TempDir(), "envoy.yaml")
				requireNames(t, name, less, id, l.fullDuplex)
				return less
			}
			x.happens(t, newFleet(t, l))
		})
	}
}

// requireNames checks that the command's check names the part, and what happens.
func requireNames(t *testing.T, name, config, id string, duplex bool) {
	t.Helper()
	found, err := envoyfile.Check(envoy.Params{FullDuplex: duplex}, envoyfile.File{Name: name, Data: []byte(config)})
	require.NoError(t, err)
	ids := []string{}
	for _, f := range found {
		ids = append(ids, f.Part.ID)
	}
	require.Contains(t, ids, id)
}
