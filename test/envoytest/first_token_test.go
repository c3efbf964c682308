//go:build e2e

package envoytest

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// sayNo has w begin each streamed answer with its head and its roles, and then say that
// it cannot serve.
func (f *fleet) sayNo(w int) {
	f.t.Helper()
	f.fault(f.decode[w], enginesim.Fault{Mode: enginesim.FaultError, When: enginesim.Begun})
}

func (f *fleet) firstEvents(finding string) float64 {
	return f.metric("baton_first_events_total", `finding="`+finding+`"`)
}

// TestAnErrorBeforeTheFirstTokenIsAFreshAttempt: engines send the head, and a role,
// before they know. No client sees it, and the KV of the failed attempt is not kept.
func TestAnErrorBeforeTheFirstTokenIsAFreshAttempt(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 2, config: everyTurn}
	leased := l // what decode has not fetched, nobody else gives back
	leased.prefillArgs = shortLease
	test := func(t *testing.T, f *fleet) {
		f.sayNo(0)
		for i := range 3 {
			for _, q := range ask("the first of two says no", 4+i)[2:] {
				q.require(t, f.send(t.Context(), q.path, q.body))
			}
		}
		require.NotZero(t, f.firstEvents("error"))
		f.awaitOutcomes(6, "ok")
		require.Zero(t, f.outcomes("failed"))
	}
	t.Run("sglang", func(t *testing.T) {
		t.Parallel()
		both(t, l, test)
	})
	eachSync(t, leased, func(t *testing.T, f *fleet, _ worker.Engine) { test(t, f) })
}

// TestAnErrorThatNobodyCanMendReachesTheClient in the worker's own words, and counts.
func TestAnErrorThatNobodyCanMendReachesTheClient(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"hold", "off"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			if mode == "off" {
				needsUsage(t)
			}
			l := layout{prefill: 1, decode: 1, config: "answer: {first_token: " + mode + "}\n"}
			if mode == "off" { // beside prefill the head waits for it, and so does the error
				l.prefillArgs = shortLease // nobody has fetched that KV
				l = layoutOf(l, worker.VLLM)
			}
			both(t, l, func(t *testing.T, f *fleet) {
				f.sayNo(0)
				for i, q := range ask("nobody else is there", 4)[2:] {
					r := f.send(t.Context(), q.path, q.body)
					require.NoError(t, r.err)
					require.Equal(t, http.StatusOK, r.status, r.body)
					require.Contains(t, r.body, `"injected error"`)
					f.awaitOutcomes(i+1, "failed", `code="decode_failed"`)
				}
				require.Equal(t, mode == "hold", f.firstEvents("error") > 0)
				require.Zero(t, f.outcomes("ok"))
			})
		})
	}
}

// TestAnAnswerThatIsNotHeldIsLearntFromItsEnd: the head is the client's before there is
// a token, and what the worker says later still counts.
func TestAnAnswerThatIsNotHeldIsLearntFromItsEnd(t *testing.T) {
	t.Parallel()
	needsUsage(t)
	both(t, layout{aggregated: 2, config: everyTurn + "answer: {first_token: off}\n"}, func(t *testing.T, f *fleet) {
		f.fault(f.workers[0], enginesim.Fault{Mode: enginesim.FaultHold, When: enginesim.Begun, Count: 1})
		for range 2 {
			q := ask("not held", 6)[3]
			r, err := client.Post(f.envoy.URL+q.path, "application/json", strings.NewReader(q.body))
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, r.StatusCode, "it has begun")
			f.fault(f.workers[0], enginesim.Fault{})
			body, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.NoError(t, r.Body.Close())
			require.Contains(t, string(body), "data: [DONE]")
		}
		f.fault(f.workers[0], enginesim.Fault{Mode: enginesim.FaultError, When: enginesim.Begun})
		for i := 0; f.setAside() == 0 && i < 60; i++ {
			f.send(t.Context(), "/v1/completions", completion(fmt.Sprintf("it says no, %d", i), 4, true))
		}
		f.await("the worker to be set aside", func() bool { return f.setAside() > 0 })
		require.Positive(t, f.outcomes("failed", `code="decode_failed"`))
	})
}

// TestFirstEventsThatDoNotComeAreMissedAloud: an Envoy without the filter serves as it
// did, and the log says what is missing.
func TestFirstEventsThatDoNotComeAreMissedAloud(t *testing.T) {
	t.Parallel()
	without := func(y string) string {
		return strings.ReplaceAll(y, "{name: x-baton-first-token,", "{name: x-nobody-sets-this,")
	}
	both(t, layout{aggregated: 1, patch: without}, func(t *testing.T, f *fleet) {
		for _, q := range append(ask("nobody reads", 4), ask("nobody reads", 6)...) {
			q.require(t, f.send(t.Context(), q.path, q.body))
		}
		require.Equal(t, 1, strings.Count(f.plugin.Log(), "no filter baton.first_token"))
	})
}

// TestWithoutALookNothingIsNoAnswerEither: Envoy's access log tells of a streamed answer
// in which nothing came.
func TestWithoutALookNothingIsNoAnswerEither(t *testing.T) {
	t.Parallel()
	both(t, layout{aggregated: 2, config: everyTurn + "answer: {first_token: off}\n"}, func(t *testing.T, f *fleet) {
		f.fault(f.workers[0], enginesim.Fault{Mode: enginesim.FaultEmpty})
		for i := 0; f.setAside() == 0 && i < 60; i++ {
			f.send(t.Context(), "/v1/completions", completion(fmt.Sprintf("nothing comes, %d", i), 4, true))
		}
		f.await("the worker to be set aside", func() bool { return f.setAside() > 0 })
		require.Positive(t, f.outcomes("failed", `code="empty_answer"`))
	})
}

// TestAHeldAnswerOutlivesThePlugin where bodies are buffered; in full duplex the
// request is refused as any is whose answer has not begun.
func TestAHeldAnswerOutlivesThePlugin(t *testing.T) {
	t.Parallel()
	both(t, layout{aggregated: 1}, func(t *testing.T, f *fleet) {
		q := ask("the plugin is killed", 10)[3]
		r := f.killed(q, f.workers[0], enginesim.Begun, "the answer to be held", func() bool {
			return f.metric("baton_streams_in_flight", `leg="first_token"`) == 1
		}, true)
		requireUnavailable(t, r)
	})
}

// needsUsage skips a test of what Envoy reads of streamed answers.
func needsUsage(t *testing.T) {
	t.Helper()
	if envoyMinor() < 39 {
		t.Skip("Envoy reads streamed answers since 1.39: docs/envoy-versions.md")
	}
}

// TestAnEncodedAnswerPassesAtOnce: its events cannot be read. No engine is asked for it.
func TestAnEncodedAnswerPassesAtOnce(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]layout{
		"one's own Envoy": {noCheck: true},
		"a gateway":       {noCheck: true, gateway: &envoy.GatewayParams{}, twoLegs: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, l, func(t *testing.T, f *fleet) {
				var calls atomic.Int64
				var asked atomic.Value
				read := make(chan struct{})
				w := fake(t, 900, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/v1/completions" {
						http.NotFound(w, r)
						return
					}
					calls.Add(1)
					asked.Store(r.Header.Get("Accept-Encoding"))
					w.Header().Set("Content-Type", "text/event-stream")
					w.Header().Set("Content-Encoding", "gzip")
					z := gzip.NewWriter(w)
					_, _ = io.WriteString(z, "data: {\"choices\":[{\"text\":\"packed\"}]}\n\n")
					_ = z.Flush()
					w.(http.Flusher).Flush()
					select {
					case <-read:
					case <-r.Context().Done():
					}
					_, _ = io.WriteString(z, "data: [DONE]\n\n")
					_ = z.Close()
				})
				f.publishAndWait(w)
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.envoy.URL+"/v1/completions", strings.NewReader(completion("hi", 2, true)))
				require.NoError(t, err)
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Accept-Encoding", "gzip")
				resp, err := client.Do(req)
				require.NoError(t, err)
				defer resp.Body.Close()
				z, err := gzip.NewReader(resp.Body)
				require.NoError(t, err)
				first := make([]byte, len("data: "))
				_, err = io.ReadFull(z, first)
				require.NoError(t, err)
				close(read)
				rest, err := io.ReadAll(z)
				require.NoError(t, err)
				require.Contains(t, string(rest), "packed")
				require.EqualValues(t, 1, calls.Load())
				require.Empty(t, asked.Load())
				f.await("the outcome", func() bool { return f.metric("baton_requests_total", `outcome="ok"`) == 1 })
			})
		})
	}
}
