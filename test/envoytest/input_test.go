//go:build e2e

package envoytest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// badInput is one row of the failure table that needs nothing but a request.
type badInput struct {
	name, method, path, body string
	headers                  []string
	status                   int
	code, kind               string
}

func badInputs() []badInput {
	post := http.MethodPost
	good := completion("hello", 2, false)
	return []badInput{
		{"a path without a body", http.MethodGet, "/v1/files", "", nil, 404, "unknown_path", "not_found_error"},
		{"a path without its prefix, and without a body", http.MethodGet, "/models", "", nil, 404, "unknown_path", "not_found_error"},
		{"the root", post, "/", good, nil, 404, "unknown_path", "not_found_error"},
		{"sleep", post, "/sleep?level=2", good, nil, 404, "unknown_path", "not_found_error"},
		{"sleep, escaped", post, "/%73leep", good, nil, 404, "unknown_path", "not_found_error"},
		{"an adapter to be loaded", post, "/v1/load_lora_adapter", good, nil, 404, "unknown_path", "not_found_error"},
		{"another path, no JSON", post, "/v1/embeddings", "model=m", nil, 400, "not_json", "invalid_request_error"},
		{"another path, no such model", post, "/v1/embeddings", `{"model":"nobody"}`, nil, 404, "model_not_found", "not_found_error"},
		{"another path, a field of the router's", post, "/v1/messages", `{"model":"m","kv_transfer_params":{"do_remote_prefill":true}}`, nil, 400, "forbidden_field", "invalid_request_error"},
		{"another path, the same deep inside", post, "/v1/embeddings", `{"model":"m","input":[{"do_remote_prefill":true}]}`, nil, 400, "forbidden_field", "invalid_request_error"},
		{"a worker's own control path", post, "/flush_cache", "", nil, 404, "unknown_path", "not_found_error"},
		{"a worker's own state", http.MethodGet, "/sim/state", "", nil, 404, "unknown_path", "not_found_error"},
		{"GET on a completion", http.MethodGet, "/v1/completions", "", nil, 405, "method_not_allowed", "invalid_request_error"},
		{"PUT on a chat", http.MethodPut, "/v1/chat/completions", good, nil, 405, "method_not_allowed", "invalid_request_error"},
		{"DELETE on generate", http.MethodDelete, "/generate", "", nil, 405, "method_not_allowed", "invalid_request_error"},
		{"no body at all", post, "/v1/completions", "", nil, 400, "missing_body", "invalid_request_error"},
		{"one byte", post, "/v1/completions", "x", nil, 400, "not_json", "invalid_request_error"},
		{"a blank", post, "/v1/completions", " ", nil, 400, "not_json", "invalid_request_error"},
		{"a JSON list", post, "/v1/completions", "[]", nil, 400, "not_json", "invalid_request_error"},
		{"JSON cut short", post, "/v1/completions", good[:len(good)-3], nil, 400, "not_json", "invalid_request_error"},
		{"JSON with more after it", post, "/v1/completions", good + "{}", nil, 400, "not_json", "invalid_request_error"},
		{"bytes that are no text", post, "/v1/completions", "{\"model\":\"m\",\"prompt\":\"\xff\x00\"}", nil, 400, "not_json", "invalid_request_error"},
		{"no prompt", post, "/v1/completions", `{"model":"m"}`, nil, 400, "missing_field", "invalid_request_error"},
		{"no messages", post, "/v1/chat/completions", `{"model":"m"}`, nil, 400, "missing_field", "invalid_request_error"},
		{"a model that is no text", post, "/v1/completions", `{"model":7,"prompt":"x"}`, nil, 400, "wrong_type", "invalid_request_error"},
		{"a stream that is no truth", post, "/v1/completions", `{"model":"m","prompt":"x","stream":"maybe"}`, nil, 400, "wrong_type", "invalid_request_error"},
		{"a negative limit", post, "/v1/completions", `{"model":"m","prompt":"x","max_tokens":-1}`, nil, 400, "wrong_type", "invalid_request_error"},
		{"a prompt that is a number", post, "/v1/completions", `{"model":"m","prompt":7}`, nil, 400, "wrong_type", "invalid_request_error"},
		{"a field twice", post, "/v1/completions", `{"model":"m","prompt":"x","prompt":"y"}`, nil, 400, "duplicate_field", "invalid_request_error"},
		{"a response without an input", post, "/v1/responses", `{"model":"m"}`, nil, 400, "missing_field", "invalid_request_error"},
		{"a message with a limit that is no number", post, "/v1/messages", `{"model":"m","messages":[],"max_tokens":"four"}`, nil, 400, "wrong_type", "invalid_request_error"},
		{"a field of the router's", post, "/v1/completions", `{"model":"m","prompt":"x","bootstrap_room":1}`, nil, 400, "forbidden_field", "invalid_request_error"},
		{"an unknown model", post, "/v1/completions", `{"model":"nobody","prompt":"x"}`, nil, 404, "model_not_found", "not_found_error"},
		{"a body in gzip", post, "/v1/chat/completions", "\x1f\x8b\x08\x00", []string{"Content-Encoding", "gzip"}, 415, "encoded_body", "invalid_request_error"},
		{"another path, a body in zstd", post, "/v1/embeddings", "\x28\xb5\x2f\xfd", []string{"Content-Encoding", "zstd"}, 415, "encoded_body", "invalid_request_error"},
		{"a time-out that is no number", post, "/v1/completions", good, []string{"x-request-timeout-ms", "soon"}, 400, "invalid_timeout", "invalid_request_error"},
		{"a time-out of nothing", post, "/v1/completions", good, []string{"x-request-timeout-ms", "0"}, 400, "invalid_timeout", "invalid_request_error"},
		{"a negative time-out", post, "/v1/completions", good, []string{"x-request-timeout-ms", "-5"}, 400, "invalid_timeout", "invalid_request_error"},
		{"a time-out past all numbers", post, "/v1/completions", good, []string{"x-request-timeout-ms", "99999999999999999999"}, 400, "invalid_timeout", "invalid_request_error"},
	}
}

// TestABadRequestIsRefusedWithItsRowOfTheFailureTable is docs/behaviour.md#bad-request.
func TestABadRequestIsRefusedWithItsRowOfTheFailureTable(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet) {
		for _, c := range badInputs() {
			t.Run(c.name, func(t *testing.T) {
				label := fmt.Sprintf("code=%q", c.code)
				before := f.metric("baton_failures_total", label)
				h := http.Header{"Content-Type": {"application/json"}}
				for i := 0; i+1 < len(c.headers); i += 2 {
					h.Set(c.headers[i], c.headers[i+1])
				}
				r := f.do(c.method, c.path, strings.NewReader(c.body), h)
				requireError(t, r, c.status, c.code)
				require.Contains(t, r.body, fmt.Sprintf("%q:%q", "type", c.kind))
				require.Empty(t, r.header.Get("Retry-After"))
				require.InDelta(t, before+1, f.metric("baton_failures_total", label), 0)
			})
		}
		require.Empty(t, f.gotAll(f.workers), "a refused request reached a worker")
	})
}

// TestTheModelsOfTheViewAreListed: GET /v1/models needs no worker, nor does /health.
func TestTheModelsOfTheViewAreListed(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 1}, func(t *testing.T, f *fleet) {
		r := f.do(http.MethodGet, "/v1/models", nil, nil)
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Equal(t, "baton", r.header.Get("X-Answered-By"))
		require.Equal(t, "application/json", r.header.Get("Content-Type"))
		require.Regexp(t, `^{"object":"list","data":\[{"id":"m","object":"model","created":\d{10},"owned_by":"baton"}\]}$`, r.body)
		one := f.do(http.MethodGet, "/v1/models/m", nil, nil)
		require.Equal(t, http.StatusOK, one.status)
		require.Contains(t, r.body, one.body)
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			require.Equal(t, http.StatusOK, f.do(method, "/health", nil, nil).status, method)
		}
		requireError(t, f.do(http.MethodGet, "/v1/models/nobody", nil, nil), http.StatusNotFound, "model_not_found")
		for path, allow := range map[string]string{"/v1/models": "GET, HEAD", "/v1/models/m": "GET, HEAD", "/health": "GET, HEAD"} {
			r = f.do(http.MethodPost, path, strings.NewReader("{}"), nil)
			requireError(t, r, http.StatusMethodNotAllowed, "method_not_allowed")
			require.Equal(t, allow, r.header.Get("Allow"))
		}
		r = f.do(http.MethodDelete, "/v1/completions", nil, nil)
		requireError(t, r, http.StatusMethodNotAllowed, "method_not_allowed")
		require.Equal(t, "POST", r.header.Get("Allow"))
		f.leadBack()
	})
}

// leadBack lists workers at the clients' own address, with a good one of each role: they
// are recognised, named, and cost no request.
func (f *fleet) leadBack() {
	f.t.Helper()
	envoy, err := netip.ParseAddrPort(strings.TrimPrefix(f.envoy.URL, "http://"))
	require.NoError(f.t, err)
	decode, prefill := *f.decode[0].Info, *f.prefill[1].Info
	decode.ID, decode.KVEvents = 901, worker.KVEvents{}
	decode.Endpoint, err = worker.ParseEndpoint(envoy.String())
	require.NoError(f.t, err)
	prefill.Bootstrap.Host, prefill.Bootstrap.Port = envoy.Addr().String(), envoy.Port()
	f.publishAndWait(f.prefill[0], &stack.Worker{Info: &prefill}, f.decode[0], &stack.Worker{Info: &decode})
	f.await("both to be aside", func() bool {
		return f.metric("baton_aside_transitions_total", `to="aside"`, `reason="leads-back"`) == 2 && f.setAside() == 2
	})
	for i := range 6 {
		prompt := fmt.Sprintf("not round and round, %d", i)
		requireAnswer(f.t, f.send(f.t.Context(), "/v1/completions", completion(prompt, 2, false)), prompt, 2)
	}
	for _, w := range []*worker.Worker{&decode, &prefill} {
		said := regexp.MustCompile(fmt.Sprintf("%s workers is set aside: %s \\(id %d\\) .*leads back to this router: a Baton answers there; correct", w.Role, w.Endpoint, w.ID))
		f.await("the page to say so", func() bool { return said.MatchString(f.adminGet("/")) })
		require.Contains(f.t, f.plugin.Log(), fmt.Sprintf("level=WARN msg=\"worker aside\" worker_id=%d", w.ID))
	}
}

// TestABodyOverTheLimitIsRefused: Envoy's own limit and the plugin's smaller
// one, with the length announced and without.
func TestABodyOverTheLimitIsRefused(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]layout{
		"the plugin's limit": {prefill: 1, decode: 1, config: "request: {max_body_bytes: 100000}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, l, func(t *testing.T, f *fleet) {
				body := completion(strings.Repeat("word ", 60_000), 2, false)
				r := f.send(t.Context(), "/v1/completions", body)
				requireError(t, r, http.StatusRequestEntityTooLarge, "body_too_large")
				r = f.do(http.MethodPost, "/v1/completions", io.MultiReader(strings.NewReader(body)), nil)
				requireError(t, r, http.StatusRequestEntityTooLarge, "body_too_large")
				require.Empty(t, f.gotAll(f.workers))
				r = f.send(t.Context(), "/v1/completions", completion("small", 2, false))
				requireAnswer(t, r, "small", 2)
			})
		})
	}
}

// paddedCompletion is a completion whose body has exactly n bytes. The padding
// is a field that no one reads, so that the answer stays known.
func paddedCompletion(n int) string {
	body := completion("hello padded world", 3, false)
	pad := n - len(body) - len(`,"user":""`)
	if pad < 0 {
		return body
	}
	return body[:len(body)-1] + `,"user":"` + strings.Repeat("x", pad) + `"}`
}

// TestBodiesOfEverySizeReachBothLegs: sizes around the pieces in which
// streamed bodies travel, announced and chunked.
func TestBodiesOfEverySizeReachBothLegs(t *testing.T) {
	t.Parallel()
	args := []string{"--log-body-bytes", "20000000", "--log-total-bytes", "100000000"}
	l := layout{prefill: 1, decode: 1, simArgs: args, config: "prefill: {" + inLoad + "}\n"}
	both(t, l, func(t *testing.T, f *fleet) {
		for _, n := range []int{0, 61_900, 61_999, 62_000, 62_001, 124_000, 1_000_000, 10_000_000} {
			for _, chunked := range []bool{false, true} {
				f.forget()
				body := paddedCompletion(n)
				var in io.Reader = strings.NewReader(body)
				if chunked {
					in = io.MultiReader(in) // hides the length
				}
				r := f.do(http.MethodPost, "/v1/completions", in, http.Header{"Content-Type": {"application/json"}})
				requireAnswer(t, r, "hello padded world", 3)
				prefill, decode := f.legs()
				require.True(t, strings.HasPrefix(decode.Body, body[:len(body)-1]+`,"bootstrap_host"`), "%d bytes: decode's body is another", n)
				want := strings.Replace(decode.Body, `"max_tokens":3`, `"max_tokens":1`, 1)
				require.True(t, prefill.Body == want, "%d bytes: prefill's body is another", n) //nolint:testifylint // megabytes are not to be printed
			}
		}
	})
}

// TestWhoCannotServeIsSaidWithItsOwnCode: one-worker and nobody-eligible of
// docs/behaviour.md, and a plugin that does not know its workers yet.
func TestWhoCannotServeIsSaidWithItsOwnCode(t *testing.T) {
	t.Parallel()
	unavailable := func(t *testing.T, f *fleet, code string) {
		t.Helper()
		before := f.metric("baton_failures_total", fmt.Sprintf("code=%q", code))
		r := f.send(t.Context(), "/v1/completions", completion("hello", 2, true))
		requireError(t, r, http.StatusServiceUnavailable, code)
		require.Equal(t, "1", r.header.Get("Retry-After"))
		require.InDelta(t, before+1, f.metric("baton_failures_total", fmt.Sprintf("code=%q", code)), 0)
		require.Empty(t, f.gotAll(f.workers))
	}
	t.Run("no decode", func(t *testing.T) {
		t.Parallel()
		both(t, layout{prefill: 1}, func(t *testing.T, f *fleet) { unavailable(t, f, "no_decode_worker") })
	})
	t.Run("decode alone", func(t *testing.T) {
		t.Parallel()
		both(t, layout{decode: 1}, func(t *testing.T, f *fleet) { unavailable(t, f, "no_aggregated_worker") })
	})
	t.Run("enforced decode", func(t *testing.T) {
		t.Parallel()
		both(t, layout{decode: 1, config: "enforce_disagg: true\n"}, func(t *testing.T, f *fleet) {
			unavailable(t, f, "disaggregation_enforced")
		})
	})
	t.Run("enforced aggregated", func(t *testing.T) {
		t.Parallel()
		both(t, layout{aggregated: 1, config: "enforce_disagg: true\n"}, func(t *testing.T, f *fleet) {
			unavailable(t, f, "disaggregation_enforced")
		})
	})
	t.Run("no worker at all", func(t *testing.T) {
		t.Parallel()
		both(t, layout{noCheck: true}, func(t *testing.T, f *fleet) {
			r := f.send(t.Context(), "/v1/completions", completion("hello", 2, false))
			requireError(t, r, http.StatusNotFound, "model_not_found")
		})
	})
	t.Run("the view is not in yet", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, layout{noCheck: true})
		require.NoError(t, f.plugin.Kill())
		require.NoError(t, os.Remove(filepath.Join(f.dir, "workers.yaml")))
		var err error
		f.plugin, err = stack.StartPlugin(f.ctx, stack.PluginOptions{
			BinDir: binDir, Dir: f.dir, Workers: filepath.Join(f.dir, "workers.yaml"), NotWait: true, Config: "request: {max_wait: 100ms}\n",
		})
		require.NoError(t, err)
		f.await("the plugin to run", func() bool { return strings.Contains(f.plugin.Log(), "baton has started") })
		r := f.send(t.Context(), "/v1/completions", completion("hello", 2, true)) // it does not listen yet
		requireError(t, r, http.StatusServiceUnavailable, "router_unavailable")
		require.Equal(t, "1", r.header.Get("Retry-After"))
		require.NoError(t, f.plugin.Kill())
		requireError(t, f.do(http.MethodGet, "/health", nil, nil), http.StatusServiceUnavailable, "router_unavailable")
	})
}

// TestAnAggregatedWorkerServesWhereNoPrefillIsKnown is docs/behaviour.md#one-worker.
func TestAnAggregatedWorkerServesWhereNoPrefillIsKnown(t *testing.T) {
	t.Parallel()
	both(t, layout{aggregated: 1}, func(t *testing.T, f *fleet) {
		for i := range 4 {
			body := completion("hello alone", 5, i%2 == 0)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", body), "hello alone", 5)
			got := f.gotAll(f.workers)
			require.Len(t, got, i+1)
			require.Equal(t, body, got[i].Body, "nothing is injected without a prefill worker")
			for name := range got[i].Headers {
				require.False(t, strings.HasPrefix(name, "X-Bootstrap-"), name)
				require.False(t, strings.HasPrefix(name, "X-Baton-"), name)
			}
		}
	})
}

// TestADecodeWorkerThatTakesAggregatedRequestsServesAlone is
// docs/behaviour.md#one-worker.
func TestADecodeWorkerThatTakesAggregatedRequestsServesAlone(t *testing.T) {
	t.Parallel()
	both(t, layout{decode: 1, simArgs: []string{"--accepts-aggregated"}}, func(t *testing.T, f *fleet) {
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("alone", 3, true)), "alone", 3)
	})
}

// TestNothingWaitsPastTheClientsDeadline is docs/behaviour.md#deadline.
func TestNothingWaitsPastTheClientsDeadline(t *testing.T) {
	t.Parallel()
	for name, leg := range map[string]func(*fleet) []*stack.Worker{
		"decode hangs":  func(f *fleet) []*stack.Worker { return f.decode },
		"prefill hangs": func(f *fleet) []*stack.Worker { return f.prefill },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, layout{prefill: 1, decode: 1, config: "prefill: {orphan_grace: 100ms, overdue_base: 1m}\n"}, func(t *testing.T, f *fleet) {
				for _, w := range leg(f) {
					require.NoError(t, w.Sim.SetFault(t.Context(), enginesim.Fault{Mode: enginesim.FaultHang}))
				}
				r := f.send(t.Context(), "/v1/completions", completion("hello", 2, true), "x-request-timeout-ms", "300")
				requireError(t, r, http.StatusGatewayTimeout, "deadline_exceeded")
				require.Empty(t, r.header.Get("Retry-After"))
				require.Contains(t, r.body, `"timeout_error"`)
				require.InDelta(t, 1, f.metric("baton_failures_total", `code="deadline_exceeded"`), 0)
				for _, w := range leg(f) {
					require.NoError(t, w.Sim.SetFault(t.Context(), enginesim.Fault{}))
				}
			})
		})
	}
}

// TestAFailedLegThatCannotBeRepeatedIsSaidWithItsOwnCode: every attempt fails.
func TestAFailedLegThatCannotBeRepeatedIsSaidWithItsOwnCode(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 2, config: "prefill: {orphan_grace: 100ms}\nhealth: {server_errors: 100}\n"}
	for _, c := range []struct {
		name   string
		fault  enginesim.Fault
		decode bool
		status int
		code   string
		retry  string
	}{
		{"prefill errors", enginesim.Fault{Mode: enginesim.FaultError, Status: 500}, false, 503, "prefill_failed", "1"},
		{"prefill aborts", enginesim.Fault{Mode: enginesim.FaultFinishAbort}, false, 503, "prefill_failed", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			both(t, l, func(t *testing.T, f *fleet) {
				faulty := f.prefill
				if c.decode {
					faulty = f.decode
				}
				for _, w := range faulty {
					require.NoError(t, w.Sim.SetFault(t.Context(), c.fault))
				}
				r := f.send(t.Context(), "/v1/completions", completion("hello", 2, true))
				requireError(t, r, c.status, c.code)
				require.Equal(t, c.retry, r.header.Get("Retry-After"))
				require.InDelta(t, 1, f.metric("baton_failures_total", fmt.Sprintf("code=%q", c.code)), 0)
				require.InDelta(t, 2, f.metric("baton_fresh_picks_total"), 0)
			})
		})
	}
}

// TestAWorkersRefusalOfTheRequestIsPassedOn: a 4xx would meet any worker, and a redirect
// is the client's, so neither is repeated or hidden.
func TestAWorkersRefusalOfTheRequestIsPassedOn(t *testing.T) {
	t.Parallel()
	for name, leg := range map[string]func(*fleet) *stack.Worker{
		"prefill refuses": func(f *fleet) *stack.Worker { return f.prefill[0] },
		"decode refuses":  func(f *fleet) *stack.Worker { return f.decode[0] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, layout{prefill: 1, decode: 1, config: "prefill: {orphan_grace: 50ms}\n"}, func(t *testing.T, f *fleet) {
				for status, location := range map[int]string{http.StatusUnprocessableEntity: "", http.StatusTemporaryRedirect: "/elsewhere"} {
					require.NoError(t, leg(f).Sim.SetFault(t.Context(), enginesim.Fault{Mode: enginesim.FaultError, Status: status}))
					r := f.send(t.Context(), "/v1/completions", completion("hello", 2, true))
					require.NoError(t, r.err)
					require.Equal(t, status, r.status, r.body)
					require.Contains(t, r.body, "injected error", "the worker's own words")
					require.True(t, strings.HasPrefix(r.header.Get("Content-Type"), "application/json"))
					require.Equal(t, location, r.header.Get("Location"))
				}
				require.Zero(t, f.metric("baton_fresh_picks_total"))
				require.Zero(t, f.metric("baton_aside_transitions_total", `to="aside"`))
			})
		})
	}
}

// TestDecodesOwnErrorIsGivenOnTheLastAttempt: until then it is a fresh attempt.
func TestDecodesOwnErrorIsGivenOnTheLastAttempt(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 2, config: "prefill: {orphan_grace: 50ms}\nrouting: {decode: {mode: round-robin}}\nhealth: {server_errors: 100}\n"}
	both(t, l, func(t *testing.T, f *fleet) {
		f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultError, Status: 507})
		for range 2 {
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("hello", 2, true)), "hello", 2)
		}
		f.fault(f.decode[1], enginesim.Fault{Mode: enginesim.FaultError, Status: 507})
		r := f.send(t.Context(), "/v1/completions", completion("hello", 2, true))
		require.Equal(t, 507, r.status, r.body)
		require.Contains(t, r.body, "injected error")
	})
}

// TestRequestsThatEnvoyItselfRefuses: malformed requests end at Envoy.
func TestRequestsThatEnvoyItselfRefuses(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{prefill: 1, decode: 1})
	addr := strings.TrimPrefix(f.envoy.URL, "http://")
	for name, c := range map[string]struct{ raw, status string }{
		"a header name with an underscore": {"POST /v1/completions HTTP/1.1\r\nHost: a\r\nx_baton_leg: 1\r\nContent-Length: 0\r\n\r\n", "400"},
		"two lengths":                      {"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "400"},
		"a length and chunks":              {"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"a transfer encoding of no kind":   {"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: bogus\r\n\r\n", "400"},
		"chunks with more behind them":     {"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", "400"},
		"an escaped slash in the path":     {"POST /v1%2Fcompletions HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "400"},
		"no host":                          {"POST /v1/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "400"},
		"HTTP/1.0":                         {"POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}", "426"},
		"a tunnel":                         {"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n", "404"},
		"headers without end":              {"POST /v1/completions HTTP/1.1\r\nHost: a\r\nx-long: " + strings.Repeat("a", 70_000) + "\r\n\r\n", "431"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(5*time.Second)))
			_, err = io.WriteString(conn, c.raw)
			require.NoError(t, err)
			line := make([]byte, 12)
			_, err = io.ReadFull(conn, line)
			require.NoError(t, err)
			require.Equal(t, "HTTP/1.1 "+c.status, string(line))
		})
	}
	require.Empty(t, f.gotAll(f.workers))
}

// withHeaders sends a request with n more headers of size bytes each.
func (f *fleet) withHeaders(n, size int) *reply {
	h := http.Header{"Content-Type": {"application/json"}}
	for i := range n {
		h.Set(fmt.Sprintf("x-own-%d", i), strings.Repeat("v", size))
	}
	return f.do(http.MethodPost, "/v1/completions", strings.NewReader(completion("many headers", 2, n%2 == 0)), h)
}

// serveManyHeaders checks that what the client listener lets in is served: it has Envoy's
// limits of 100 headers and 60 KiB, and others are added on the way.
func (f *fleet) serveManyHeaders() {
	f.t.Helper()
	for _, c := range [][2]int{{75, 1}, {96, 1}, {1, 60_900}, {50, 1_190}} {
		requireAnswer(f.t, f.withHeaders(c[0], c[1]), "many headers", 2)
	}
}

// TestMoreHeadersThanALegTakesAreRefused: with what the plugin adds they are over the
// limit of the main leg, which here is the client's.
func TestMoreHeadersThanALegTakesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{prefill: 1, decode: 1, config: "prefill: {start_timeout: 1m}\n", patch: func(config string) string {
		return strings.NewReplacer("max_headers_count: 1000}", "max_headers_count: 100}", "max_request_headers_kb: 512", "max_request_headers_kb: 60").Replace(config)
	}})
	for _, r := range []*reply{f.withHeaders(85, 1), f.withHeaders(86, 1), f.withHeaders(1, 60_900)} {
		requireError(t, r, http.StatusRequestHeaderFieldsTooLarge, "proxy_refused")
	}
	require.Empty(t, f.gotAll(f.decode))
	f.await("the refusals to be counted, and nothing to be booked", func() bool {
		return f.metric("baton_failures_total", `code="proxy_refused"`) == 3 && f.metric("baton_worker_prefill_requests") == 0
	})
	require.Zero(t, f.metric("baton_requests_total", `outcome="client_left"`))
}

// TestARequestInTheFormOfAnotherHostStaysHere: neither the Host header nor a
// request line with an address chooses where a request goes.
func TestARequestInTheFormOfAnotherHostStaysHere(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet) {
		c := newCanary(t)
		body := completion("elsewhere", 2, false)
		for _, target := range []string{"/v1/completions", "http://" + c.addr + "/v1/completions"} {
			conn, err := net.Dial("tcp", strings.TrimPrefix(f.envoy.URL, "http://"))
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(5*time.Second)))
			_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
				target, c.addr, len(body), body)
			require.NoError(t, err)
			answer, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.True(t, bytes.HasPrefix(answer, []byte("HTTP/1.1 200")), "%s", answer)
		}
		require.Zero(t, c.contacts.Load())
	})
}

// TestTrailersOfTheRequestDoNotDisturb: HTTP/2 clients may send them.
func TestTrailersOfTheRequestDoNotDisturb(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet) {
		c := newCanary(t)
		p := new(http.Protocols)
		p.SetUnencryptedHTTP2(true)
		tr := &http.Transport{Protocols: p}
		defer tr.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.envoy.URL+"/v1/completions",
			io.MultiReader(strings.NewReader(completion("with trailers", 3, false))))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Trailer = http.Header{"X-Gateway-Destination-Endpoint": {c.addr}, "X-Prefill-Cluster": {"decode"}, "X-Own": {"1"}}
		r := roundTrip(&http.Client{Transport: tr}, req)
		requireAnswer(t, r, "with trailers", 3)
		f.serveManyHeaders()
		require.Zero(t, c.contacts.Load())
	})
}

// Envoy by itself would answer what says that it is gRPC with 200 and no body.
func TestARequestThatSaysItIsGRPCIsAnsweredAsAnyOther(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, noCheck: true}, func(t *testing.T, f *fleet) {
		ask := func(contentType, body string) *reply {
			return f.do(http.MethodPost, "/v1/completions", strings.NewReader(body), http.Header{"Content-Type": {contentType}})
		}
		for _, grpc := range []string{"application/grpc", "application/grpc+proto", "application/grpc;x=y"} {
			requireError(t, ask(grpc, `{"model":"nobody","prompt":"x"}`), 404, "model_not_found")
			requireError(t, ask(grpc, `{"model":"m","prompt":"x","nvext":{"decode_worker_id":1}}`), 400, "forbidden_field")
			requireError(t, ask(grpc, "\x00\x00\x00\x00\x05hello"), 400, "not_json")
			requireError(t, ask(grpc, `{"model":"m","prompt":"x","nvext":{"annotations":["query_instance_id:"]}}`), 400, "forbidden_field")
			f.forget()
			requireAnswer(t, ask(grpc, completion("served", 2, false)), "served", 2)
			_, d := f.legs()
			require.Equal(t, "application/json", d.Headers.Get("Content-Type"))
		}
		f.forget()
		requireAnswer(t, ask("application/json; charset=utf-8", completion("as it was", 2, false)), "as it was", 2)
		_, d := f.legs()
		require.Equal(t, "application/json; charset=utf-8", d.Headers.Get("Content-Type"))
		require.NoError(t, f.plugin.Kill())
		requireError(t, ask("application/grpc", completion("hi", 2, false)), 503, "router_unavailable")
	})
}

// TestWebPagesOfOtherOriginsAreLetInWhereTheConfigurationSaysSo, which as it is shipped
// says it of none.
func TestWebPagesOfOtherOriginsAreLetInWhereTheConfigurationSaysSo(t *testing.T) {
	t.Parallel()
	const origin = "https://chat.example.com"
	ask := func(f *fleet, method, origin string) *reply {
		return f.do(method, "/v1/chat/completions", nil, http.Header{"Origin": {origin}, "Access-Control-Request-Method": {"POST"}})
	}
	f := newFleet(t, layout{noCheck: true, patch: func(config string) string { return strings.ReplaceAll(config, "#cors ", "") }})
	r := ask(f, http.MethodOptions, origin)
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Equal(t, origin, r.header.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "GET, POST", r.header.Get("Access-Control-Allow-Methods"))
	require.Equal(t, "authorization, content-type", r.header.Get("Access-Control-Allow-Headers"))
	r = ask(f, http.MethodPost, origin)
	requireError(t, r, http.StatusBadRequest, "missing_body")
	require.Equal(t, origin, r.header.Get("Access-Control-Allow-Origin"), "the page may read refusals")
	r = ask(f, http.MethodOptions, "https://elsewhere.example.com")
	requireError(t, r, http.StatusMethodNotAllowed, "method_not_allowed")
	require.Empty(t, r.header.Get("Access-Control-Allow-Origin"))
}

// TestABodyIsReadAsItsEngineReadsIt: what pydantic takes for a number or a truth value is one here,
// and the only model need not be named. What ends SGLang is refused, and it lives.
func TestABodyIsReadAsItsEngineReadsIt(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			both(t, layoutOf(layout{prefill: 1, decode: 1}, engine), func(t *testing.T, f *fleet) {
				bodies := []string{
					`{"prompt":"hello","max_tokens":3}`, `{"model":null,"prompt":"hello","max_tokens":"3"}`, `{"model":"","prompt":"hello","max_tokens":3.0}`,
					`{"model":"m","prompt":"hello","max_tokens":3,"n":"1","stream":"no"}`, `{"model":"m","prompt":"hello","max_tokens":3,"n":true,"stream":1}`,
				}
				if engine == worker.SGLang {
					bodies = append(bodies, `{"model":"default","prompt":"hello","max_tokens":3}`)
				}
				for _, body := range bodies {
					r := f.send(t.Context(), "/v1/completions", body)
					require.Equal(t, http.StatusOK, r.status, "%s: %s", body, r.body)
					require.Equal(t, strings.Contains(body, `"stream":1`), strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream"), body)
				}
				prefill, decode := f.gotAll(f.prefill), f.gotAll(f.decode)
				require.Len(t, prefill, len(bodies), "each is served apart")
				require.Len(t, decode, len(bodies))
				if engine == worker.SGLang {
					requireError(t, f.send(t.Context(), "/generate", `{"text":["a",""]}`), http.StatusBadRequest, "wrong_type")
					require.Len(t, f.gotAll(f.workers), 2*len(bodies))
				}
			})
		})
	}
}
