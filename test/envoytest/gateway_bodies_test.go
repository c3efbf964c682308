//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// This file is for what goes through a gateway with our plugin: bodies, trailers,
// paths, names of requests, refusals.

// newEcho runs a gateway in front of one worker of the test's own making, which
// serves the model m alone.
func newEcho(t *testing.T, l layout, h http.HandlerFunc) *fleet {
	t.Helper()
	if l.gateway == nil {
		l.gateway = new(envoy.GatewayParams)
	}
	l.config = pickerConfig + "tokens: {mode: estimate}\n" + l.config
	l.beforeEnvoy = func(f *fleet) {
		w := fake(t, 900, h)
		f.gateway.Pool = []string{w.Info.Endpoint.String()}
		f.publishAndWait(w)
	}
	return newFleet(t, l)
}

// eachEcho is eachGateway for newEcho. The handler is one for all of its fleets, which
// run side by side.
func eachEcho(t *testing.T, l layout, h http.HandlerFunc, test func(t *testing.T, f *fleet, twoLegs bool)) {
	t.Helper()
	eachForm(t, l, func(t *testing.T, l layout) { test(t, newEcho(t, l, h), l.twoLegs) })
}

// eachForm runs a test with the layout with one leg and with two, in both body modes.
func eachForm(t *testing.T, l layout, test func(t *testing.T, l layout)) {
	t.Helper()
	for _, two := range []bool{false, true} {
		for _, duplex := range []bool{false, true} {
			name := map[bool]string{true: "two legs/", false: "one leg/"}[two] + map[bool]string{true: "full-duplex", false: "buffered"}[duplex]
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				l := l
				l.twoLegs, l.fullDuplex = two, duplex
				test(t, l)
			})
		}
	}
}

// echo answers with what it was sent.
func echo(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		return
	}
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Got", fmt.Sprintf("%s %s %d", r.Method, r.URL.Path, len(b)))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
}

// oddCompletion is a completion of exactly n bytes, or a little more, whose prompt has
// characters of two to four bytes and escapes everywhere, so that every boundary is
// inside one or the other.
func oddCompletion(n int) string {
	const head, tail, unit = `{"model":"m","max_tokens":2,"stream":false,"prompt":"`, `"}`, `é𝄞\"\\\u00e9\ud834\udd1e€`
	var b strings.Builder
	b.WriteString(head)
	for n-b.Len()-len(tail) >= len(unit) {
		b.WriteString(unit)
	}
	b.WriteString(strings.Repeat("x", max(n-b.Len()-len(tail), 0)))
	return b.String() + tail
}

var sizes = []int{0, 1, 62_000, 62_001, 10_000_000}

func requireSame(t *testing.T, want, got, what string) {
	t.Helper()
	require.Equal(t, len(want), len(got), what) //nolint:testifylint // megabytes are not to be printed
	require.True(t, want == got, what)          //nolint:testifylint // the same
}

// TestBodiesOfEverySizeGoThroughAGatewayBothWays as they are: of a path that we do not
// read, and of a generation, whose answer is as large.
func TestBodiesOfEverySizeGoThroughAGatewayBothWays(t *testing.T) {
	t.Parallel()
	eachEcho(t, layout{}, echo, func(t *testing.T, f *fleet, _ bool) {
		for _, n := range sizes {
			for _, chunked := range []bool{false, true} {
				what := fmt.Sprintf("%d bytes, chunked %v", n, chunked)
				send := func(path, body string) *reply {
					var in io.Reader = strings.NewReader(body)
					if chunked {
						in = io.MultiReader(in)
					}
					return f.do(http.MethodPost, path, in, http.Header{"Content-Type": {"application/json"}})
				}
				raw := oddCompletion(n)
				if n < 2 {
					raw = raw[:n]
				}
				r := send("/v1/embeddings", raw)
				require.NoError(t, r.err, what)
				if n == 1 { // what cannot be read may say what only a router may
					requireError(t, r, http.StatusBadRequest, "not_json")
				} else {
					require.Equal(t, http.StatusOK, r.status, what)
					require.Equal(t, fmt.Sprintf("POST /v1/embeddings %d", len(raw)), r.header.Get("X-Got"), what)
					requireSame(t, raw, r.body, what)
				}
				switch {
				case n == 0:
					code := map[bool]string{true: "not_json", false: "missing_body"}[chunked] // nobody knows beforehand
					requireError(t, send("/v1/completions", ""), http.StatusBadRequest, code)
				case n == 1:
					requireError(t, send("/v1/completions", "{"), http.StatusBadRequest, "not_json")
				default:
					body := oddCompletion(n)
					r := send("/v1/completions", body)
					require.NoError(t, r.err, what)
					require.Equal(t, http.StatusOK, r.status, what)
					requireSame(t, body, r.body, what)
				}
			}
		}
	})
}

// TestBodiesOfEverySizeReachBothLegsOfAGateway is the same for a pair.
func TestBodiesOfEverySizeReachBothLegsOfAGateway(t *testing.T) {
	t.Parallel()
	args := []string{"--log-body-bytes", "20000000", "--log-total-bytes", "100000000", "--prefill-us-per-token", "0", "--decode-us-per-token", "0"}
	l := layout{
		prefill: 1, decode: 1, simArgs: args, gateway: &envoy.GatewayParams{}, twoLegs: true,
		config: "tokens: {mode: estimate}\nprefill: {start_timeout: 10s, overdue_base: 60s}\n",
	}
	both(t, l, func(t *testing.T, f *fleet) {
		for _, n := range sizes[2:] {
			f.forget()
			body := oddCompletion(n)
			r := f.do(http.MethodPost, "/v1/completions", strings.NewReader(body), http.Header{"Content-Type": {"application/json"}})
			require.Equal(t, http.StatusOK, r.status, "%d bytes: %.200s", n, r.body)
			prefill, decode := f.legs()
			require.True(t, strings.HasPrefix(decode.Body, body[:len(body)-1]+`,"bootstrap_host"`), "%d bytes: decode's body is another", n)
			requireSame(t, strings.Replace(decode.Body, `"max_tokens":2`, `"max_tokens":1`, 1), prefill.Body, fmt.Sprint(n))
		}
		// An answer of many pieces, most of which come before prefill is well for all we know.
		f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultEarly200})
		for _, q := range ask("a long answer", 3000) {
			q.require(t, f.send(t.Context(), q.path, q.body))
		}
	})
}

// TestAChunkedBodyGoesThroughAGatewayWhole to the worker, or to both legs, as it was sent;
// one that comes to more than may be is refused, though nobody has said so beforehand.
func TestAChunkedBodyGoesThroughAGatewayWhole(t *testing.T) {
	t.Parallel()
	const most = 1_000_000
	l := layout{
		prefill: 1, decode: 1, decodeArgs: []string{"--accepts-aggregated"},
		simArgs: []string{"--log-body-bytes", "2000000", "--log-total-bytes", "10000000", "--prefill-us-per-token", "0", "--decode-us-per-token", "0"},
		config:  fmt.Sprintf("request: {max_body_bytes: %d}\ntokens: {mode: estimate}\nprefill: {start_timeout: 10s, overdue_base: 60s}\n", most),
	}
	eachGateway(t, l, func(t *testing.T, f *fleet, twoLegs bool) {
		send := func(body string) *reply {
			f.forget()
			return f.do(http.MethodPost, "/v1/completions", io.MultiReader(strings.NewReader(body)), http.Header{"Content-Type": {"application/json"}})
		}
		for _, n := range []int{100, 62_001, most} {
			body, what := oddCompletion(n), fmt.Sprint(n)
			r := send(body)
			require.NoError(t, r.err, what)
			require.Equal(t, http.StatusOK, r.status, "%d bytes: %.200s", n, r.body)
			if !twoLegs {
				require.Empty(t, f.gotAll(f.prefill), "nothing carries a prefill leg")
				got := f.gotAll(f.decode)
				require.Len(t, got, 1)
				requireSame(t, body, got[0].Body, what)
				continue
			}
			prefill, decode := f.legs()
			require.True(t, strings.HasPrefix(decode.Body, body[:len(body)-1]+`,"bootstrap_host"`), "%d bytes: decode's body is another", n)
			requireSame(t, strings.Replace(decode.Body, `"max_tokens":2`, `"max_tokens":1`, 1), prefill.Body, what)
		}
		requireError(t, send(oddCompletion(most+1)), http.StatusRequestEntityTooLarge, "body_too_large")
		require.Empty(t, f.gotAll(f.workers))
	})
}

// TestOtherPathsAndMethodsGoToOneWorker, with a body or without, and what we answer or
// refuse ourselves is answered and refused in a gateway too.
func TestOtherPathsAndMethodsGoToOneWorker(t *testing.T) {
	t.Parallel()
	eachEcho(t, layout{}, echo, func(t *testing.T, f *fleet, _ bool) {
		for _, c := range []struct{ method, path, body string }{
			{http.MethodGet, "/v1/files", ""}, {http.MethodHead, "/v1/files", ""}, {http.MethodDelete, "/v1/files/1", ""},
			{http.MethodPost, "/v1/rerank", ""}, {http.MethodPost, "/v1/rerank", `{"not":"read"}`}, {http.MethodPut, "/v1/files/1", `{"put":1}`},
			{http.MethodGet, "/v1/completions/1", ""}, {http.MethodOptions, "/anything", ""},
		} {
			var in io.Reader
			if c.body != "" {
				in = strings.NewReader(c.body)
			}
			r := f.do(c.method, c.path, in, nil)
			require.NoError(t, r.err, c.path)
			require.Equal(t, http.StatusOK, r.status, "%s %s: %s", c.method, c.path, r.body)
			require.Equal(t, fmt.Sprintf("%s %s %d", c.method, c.path, len(c.body)), r.header.Get("X-Got"))
			require.Equal(t, c.body, r.body)
		}
		for _, body := range []string{`{"do_remote_prefill":true}`, `{"input":"x","kv_transfer_params":{"do_remote_prefill":true}}`, `{"a":[{"bootstrap_room":1}]}`} {
			requireError(t, f.do(http.MethodPost, "/v1/rerank", strings.NewReader(body), nil), http.StatusBadRequest, "forbidden_field")
		}
		requireError(t, f.do(http.MethodPost, "/sleep", nil, nil), http.StatusNotFound, "unknown_path")
		r := f.do(http.MethodGet, "/v1/models", nil, nil)
		require.Equal(t, http.StatusOK, r.status)
		require.Contains(t, r.body, `"id":"m"`)
		require.Empty(t, r.header.Get("X-Got"))
		requireError(t, f.do(http.MethodGet, "/v1/completions", nil, nil), http.StatusMethodNotAllowed, "method_not_allowed")
		require.Zero(t, f.metric("baton_failures_total", `code="protocol_violation"`))
	})
}

// TestTrailersOfARequestAreNoHindrance: a client of HTTP/2 ends its body with them. With
// two legs they do not cross to the main leg. TestABodyThatTrailersEnd says what Envoy
// does with one leg in full duplex.
func TestTrailersOfARequestAreNoHindrance(t *testing.T) {
	t.Parallel()
	c := clientWithTrailers(t)
	eachEcho(t, layout{}, echo, func(t *testing.T, f *fleet, twoLegs bool) {
		if !twoLegs && f.fullDuplex {
			return // Envoy sends the body twice, whoever picks
		}
		for _, path := range []string{"/v1/completions", "/v1/embeddings"} {
			for _, n := range sizes[2:4] {
				body := oddCompletion(n)
				r := roundTrip(c, withTrailers(t, f.envoy.URL+path, body))
				require.NoError(t, r.err)
				require.Equal(t, http.StatusOK, r.status, r.body)
				require.Equal(t, fmt.Sprintf("POST %s %d", path, len(body)), r.header.Get("X-Got"))
				requireSame(t, body, r.body, path)
			}
		}
		require.Zero(t, f.metric("baton_failures_total"))
	})
}

// TestARequestHasOneName: Envoy's where it gives one, else ours; the worker has it, and
// so has what we note.
func TestARequestHasOneName(t *testing.T) {
	t.Parallel()
	for name, patch := range map[string]func(string) string{
		"Envoy's": nil,
		"ours": func(y string) string {
			return strings.Replace(y, "stat_prefix: client", "stat_prefix: client\n          generate_request_id: false", 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, layout{aggregated: 1, config: pickerConfig, gateway: &envoy.GatewayParams{}, patch: patch}, func(t *testing.T, f *fleet) {
				q := ask("its name", 2)[0]
				q.require(t, f.send(t.Context(), q.path, q.body))
				names := f.gotAll(f.workers)[0].Headers.Values("X-Request-Id")
				require.Len(t, names, 1)
				require.Len(t, names[0], 36)
				require.Equal(t, names[0], f.decisions()[0].RequestID)
			})
		})
	}
}

// TestAGatewaysRefusalsSayWhyInAHeader, for gateways that count what is dropped.
func TestAGatewaysRefusalsSayWhyInAHeader(t *testing.T) {
	t.Parallel()
	const reason = "x-llm-d-request-dropped-reason"
	l := layout{
		prefill: 1, decode: 1, gateway: &envoy.GatewayParams{}, twoLegs: true,
		config: "gateway: {enabled: true}\nprefill: {max_queued_isl_tokens: 50, overdue_base: 60s}\ntokens: {mode: estimate}\n",
	}
	both(t, l, func(t *testing.T, f *fleet) {
		require.NoError(t, f.prefill[0].Signal(syscall.SIGSTOP)) // it keeps what it is sent, and begins nothing
		defer func() { require.NoError(t, f.prefill[0].Signal(syscall.SIGCONT)) }()
		long := ask(strings.Repeat("a long prompt ", 40), 2)[0]
		c := f.begin(long)
		f.await("the queue to be full", func() bool { return f.metric("baton_prefill_queued_tokens") > 50 })
		r := f.send(t.Context(), long.path, long.body)
		requireSaturated(t, r, 50)
		require.Equal(t, "rejected-saturated", r.header.Get(reason))
		require.NoError(t, f.prefill[0].Signal(syscall.SIGCONT))
		long.require(t, <-c.reply)

		r = f.send(t.Context(), long.path, strings.Replace(long.body, `"m"`, `"nobody's"`, 1))
		requireError(t, r, http.StatusNotFound, "model_not_found")
		require.Empty(t, r.header.Get(reason), "that is no drop")
		f.publishAndWait(f.prefill...)
		r = f.send(t.Context(), long.path, long.body)
		requireError(t, r, http.StatusServiceUnavailable, "no_decode_worker")
		require.Equal(t, "rejected-no-endpoints", r.header.Get(reason))
	})
}

// TestADeadlineBeforeTheAnswerSaysSo, though a gateway's route knows nothing of it.
func TestADeadlineBeforeTheAnswerSaysSo(t *testing.T) {
	t.Parallel()
	hang := func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			_, _ = io.ReadAll(r.Body)
			<-r.Context().Done()
		}
	}
	eachEcho(t, layout{}, hang, func(t *testing.T, f *fleet, _ bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		r := f.send(ctx, "/v1/completions", completion("never answered", 2, false), "x-request-timeout-ms", "700")
		requireError(t, r, http.StatusGatewayTimeout, "deadline_exceeded")
	})
}
