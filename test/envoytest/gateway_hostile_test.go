//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// This file is for clients and workers that wish a gateway ill.

// forgeAll adds every header that only routers may set, the conformance suite's too.
func forgeAll(h http.Header, addr string, spelling int) {
	forge(h, addr, spelling)
	for name, v := range map[string]string{
		"test-epp-endpoint-selection": addr, served: addr, "x-gateway-destination-endpoint-anything": addr,
		"x-prefill-anything": forgedMark, "x-baton-protocol": "gateway", "x-baton-picked-endpoint": addr,
	} {
		h[spellings(name)[spelling]] = []string{v, v}
	}
}

// routing is how the names of headers begin that the plugin sets or removes itself,
// where nobody else strips them. Words for other pickers pass.
var routing = []string{
	"x-baton-", "x-prefill", "x-bootstrap-", "x-override-", "x-gateway-destination-", "x-decode-", "x-worker-", "x-dynamo-",
	"x-data-parallel-", "x-instance-id", "x-dp-rank", "x-attempt-id", "x-encoder-hosts-ports", "x-kv-cache-source-host-port",
}

// requireUnforged checks that a worker behind a gateway that strips nothing has seen
// no routing header of a client's. What Envoy itself reads in x-envoy-… is the gateway's to judge.
func requireUnforged(t *testing.T, q enginesim.Request, canary string) {
	t.Helper()
	_, port, _ := strings.Cut(canary, ":")
	lies := []string{canary, forgedMark, "1234567", "63", port}
	for name, values := range q.Headers {
		lower := strings.ToLower(name)
		ours := func(prefix string) bool { return strings.HasPrefix(lower, prefix) }
		if !slices.ContainsFunc(routing, ours) {
			continue
		}
		require.False(t, strings.HasPrefix(lower, "x-baton-"), "the worker sees %s", name)
		for _, v := range values {
			require.NotContains(t, lies, v, "the worker sees %s: %s", name, v)
		}
	}
}

// TestAClientsHeadersMoveNoRequestOfAGateway: it goes where the plugin says, whatever a
// client has set, in any spelling and twice, on paths that we read and others.
func TestAClientsHeadersMoveNoRequestOfAGateway(t *testing.T) {
	t.Parallel()
	eachGateway(t, layout{prefill: 1, decode: 2, decodeArgs: []string{"--accepts-aggregated"}}, func(t *testing.T, f *fleet, _ bool) {
		c := newCanary(t)
		for spelling := range 4 {
			for i, named := range []string{c.addr, f.decode[spelling%2].Info.Endpoint.String(), c.addr + "," + c.addr} {
				f.forget()
				prompt := fmt.Sprintf("spelling %d of the headers, %d", spelling, i)
				h := http.Header{"Content-Type": {"application/json"}}
				forgeAll(h, named, spelling)
				for name := range h { // the gateway's to judge; a hundred headers are Envoy's limit
					if strings.HasPrefix(strings.ToLower(name), "x-envoy-") && !strings.Contains(strings.ToLower(name), "dst-host") && !strings.Contains(strings.ToLower(name), "attempt") {
						delete(h, name)
					}
				}
				r := f.do(http.MethodPost, "/v1/completions", strings.NewReader(completion(prompt, 6, i%2 == 0)), h)
				requireAnswer(t, r, prompt, 6)
				d := f.decisions()[0]
				require.Equal(t, 1, d.Attempt)
				for _, q := range f.ended(f.workers) {
					requireUnforged(t, q, c.addr)
				}
				seen := f.ended(f.decode)
				require.Len(t, seen, 1)
				require.Equal(t, d.Decode.WorkerID, seen[0].Headers.Get("X-Worker-Instance-Id"))
				for _, w := range f.decode {
					if w.Info.ID.String() == d.Decode.WorkerID {
						require.Len(t, f.got(w), 1, "it went to who was picked")
						require.Equal(t, []string{w.Info.Endpoint.String()}, seen[0].Headers.Values(destination))
					}
				}
				r = f.do(http.MethodGet, "/ready", nil, h)
				require.Equal(t, http.StatusOK, r.status, r.body)
			}
		}
		require.Zero(t, c.contacts.Load(), "the canary was contacted")
		require.Zero(t, f.metric("baton_fresh_picks_total"))
		require.Zero(t, f.metric("baton_served_elsewhere_total"))
	})
}

// TestAGatewaysWorkersCannotSteerIt: what only Envoy or the plugin may say means
// nothing in a worker's answer, whether anybody strips it or not.
func TestAGatewaysWorkersCannotSteerIt(t *testing.T) {
	t.Parallel()
	eachForm(t, layout{}, func(t *testing.T, l layout) {
		var headers atomic.Pointer[http.Header]
		var calls atomic.Int64
		answers := func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.URL.Path, "/v1/completions") {
				return
			}
			_, _ = io.ReadAll(r.Body)
			calls.Add(1)
			maps.Copy(w.Header(), *headers.Load())
			_, _ = io.WriteString(w, `{"choices":[{"text":"fake","finish_reason":"stop"}]}`)
		}
		f := newEcho(t, l, answers)
		for name, h := range map[string]http.Header{
			"a wish for a retry": {"X-Baton-Retry": {"1"}},
			"a lost connection":  {"X-Baton-Local-Reply": {"UF"}},
			"a time-out":         {"X-Baton-Local-Reply": {"UT"}},
			"an overflow":        {"X-Baton-Local-Reply": {"UO"}},
			"another has served": {"X-Gateway-Destination-Endpoint-Served": {"192.0.2.9:80"}, "Upstream.address": {"192.0.2.9:80"}},
			"a decision":         {"X-Baton-Decision": {"x"}, "X-Baton-Leg": {"x"}, "X-Baton-Start": {"1"}},
			"Envoy's own":        {"X-Envoy-Attempt-Count": {"9"}, "X-Envoy-Upstream-Service-Time": {"1"}},
		} {
			headers.Store(&h)
			calls.Store(0)
			r := f.send(t.Context(), "/v1/completions", completion("hello", 1, false))
			require.NoError(t, r.err, name)
			require.Equal(t, http.StatusOK, r.status, "%s: %s", name, r.body)
			require.Contains(t, r.body, "fake", name)
			require.EqualValues(t, 1, calls.Load(), "%s: the request was repeated", name)
		}
		require.Zero(t, f.metric("baton_aside_transitions_total", `to="aside"`))
		require.Zero(t, f.metric("baton_served_elsewhere_total"))
		require.Zero(t, f.metric("baton_failures_total"))
	})
}

// TestHeadersOfEverySizeLeaveNothingBooked: within Envoy's limit they go through, beyond
// it Envoy refuses them, a client's or a worker's.
func TestHeadersOfEverySizeLeaveNothingBooked(t *testing.T) {
	t.Parallel()
	eachForm(t, layout{}, func(t *testing.T, l layout) {
		var large atomic.Int64
		answers := func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("x", int(large.Load())))
			echo(w, r)
		}
		f := newEcho(t, l, answers)
		body := completion("large headers", 1, false)
		h := http.Header{"X-Large": {strings.Repeat("x", 40_000)}, "Content-Type": {"application/json"}}
		for _, n := range []int64{0, 40_000} {
			large.Store(n)
			r := f.do(http.MethodPost, "/v1/completions", strings.NewReader(body), h)
			require.Equal(t, http.StatusOK, r.status, r.body)
			require.Equal(t, body, r.body)
		}
		large.Store(100_000)
		r := f.do(http.MethodPost, "/v1/completions", strings.NewReader(body), h)
		require.GreaterOrEqual(t, r.status, 500)
		large.Store(0)
		h.Set("X-Large", strings.Repeat("x", 100_000))
		r = f.do(http.MethodPost, "/v1/completions", strings.NewReader(body), h)
		// The client may not get to read the refusal: Envoy closes while it still writes.
		require.Contains(t, []int{0, http.StatusBadRequest, http.StatusRequestHeaderFieldsTooLarge}, r.status)
		f.await("nothing to be open", func() bool { return f.metric("baton_streams_in_flight") == 0 })
	})
}

// TestASlowBodyIsEndedByEnvoy, and nothing of it stays.
func TestASlowBodyIsEndedByEnvoy(t *testing.T) {
	t.Parallel()
	slow := func(y string) string {
		return strings.Replace(y, "stat_prefix: client", "stat_prefix: client\n          request_timeout: 0.7s", 1)
	}
	for _, duplex := range []bool{false, true} {
		t.Run(map[bool]string{true: "full-duplex", false: "buffered"}[duplex], func(t *testing.T) {
			t.Parallel()
			f := newEcho(t, layout{fullDuplex: duplex, patch: slow}, echo)
			for _, path := range []string{"/v1/completions", "/v1/embeddings"} {
				r, w := io.Pipe()
				go func() { _, _ = io.WriteString(w, `{"model":"m","prompt":"`) }()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.envoy.URL+path, r)
				require.NoError(t, err)
				context.AfterFunc(ctx, func() { _ = w.Close() }) // Go's client waits for it
				reply := roundTrip(client, req)
				cancel()
				require.NoError(t, reply.err)
				require.Equal(t, http.StatusRequestTimeout, reply.status, "%s: %s", path, reply.body)
				f.await("nothing to be open", func() bool { return f.metric("baton_streams_in_flight") == 0 })
			}
			body := completion("after it", 1, false)
			require.Equal(t, body, f.send(t.Context(), "/v1/completions", body).body)
		})
	}
}

// TestClientsThatLeaveAGatewayAtAnyMoment leave nothing booked and nothing running.
func TestClientsThatLeaveAGatewayAtAnyMoment(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	// A leg whose client has left before it began stays booked for start_timeout.
	l := layout{
		prefill: 2, decode: 2, config: "prefill: {start_timeout: 3s, overdue_base: 60s, orphan_grace: 1s}\n", gateway: &envoy.GatewayParams{},
		prefillArgs: []string{"--prefill-base-us", "10000"}, decodeArgs: []string{"--decode-us-per-token", "1000", "--accepts-aggregated"},
	}
	eachGateway(t, l, func(t *testing.T, f *fleet, _ bool) { f.leaveAtAnyMoment(t, seed, false) })
}
