//go:build e2e

package envoytest

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

func TestEnvoysOwn413ReachesTheClient(t *testing.T) {
	t.Parallel()
	// In full duplex Envoy has no limit of its own: the plugin's counts.
	both(t, layout{prefill: 1, decode: 1, envoy: envoy.Params{MaxBodyBytes: 100_000}, config: "request: {max_body_bytes: 100000}\n"}, func(t *testing.T, f *fleet) {
		body := completion(strings.Repeat("word ", 60_000), 2, false)
		r := f.send(t.Context(), "/v1/completions", body)
		requireError(t, r, 413, "body_too_large")
	})
}

func TestADeadPluginIsA503WithABody(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, noCheck: true}, func(t *testing.T, f *fleet) {
		require.NoError(t, f.plugin.Kill())
		r := f.send(t.Context(), "/v1/completions", completion("hello", 2, true))
		requireError(t, r, 503, "router_unavailable")
	})
}

func TestAnUnreachableDecodeSaysSo(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 2, config: "prefill: {orphan_grace: 100ms}\nrequest: {max_attempts: 2}\n"}, func(t *testing.T, f *fleet) {
		for _, w := range f.decode {
			require.NoError(t, w.Sim.SetFault(t.Context(), enginesim.Fault{Mode: enginesim.FaultRefuse}))
		}
		r := f.send(t.Context(), "/v1/completions", completion("hello", 2, true))
		require.Equal(t, "1", r.header.Get("Retry-After"))
		requireError(t, r, 503, "decode_unreachable")
		require.InDelta(t, 1, f.metric("baton_failures_total", `code="decode_unreachable"`), 0)
		const errno = `503 at /v1/completions: Envoy: UF,upstream_reset_before_response_started{remote_connection_failure.*Connection_refused}`
		require.Regexp(t, errno, f.adminGet("/debug/decisions"))
		f.await("the page to have the errno", func() bool { return regexp.MustCompile("The latest error: " + errno).MatchString(f.adminGet("/")) })
		require.NotContains(t, r.body, "upstream_reset", "clients do not see the inside")
	})
}

// TestADecodeThatFailsIsToldInItsOwnWords: in the record of each attempt, whether or not a
// fresh attempt hides the words from the client. Where requests are streamed, Envoy shows no
// answer that is not.
func TestADecodeThatFailsIsToldInItsOwnWords(t *testing.T) {
	t.Parallel()
	const words = "the blocks cannot be pulled from there"
	both(t, layout{prefill: 1, decode: 2, config: "prefill: {orphan_grace: 100ms}\nrequest: {max_attempts: 2}\n"}, func(t *testing.T, f *fleet) {
		for _, w := range f.decode {
			f.fault(w, enginesim.Fault{Mode: enginesim.FaultError, Words: words})
		}
		for i, stream := range []bool{true, false} {
			r := f.send(t.Context(), "/v1/completions", completion("hello", 2, stream))
			require.Equal(t, 500, r.status)
			require.Contains(t, r.body, words)
			require.NotContains(t, fmt.Sprint(r.header), "X-Baton", "the words go no further than the main leg")
			if f.fullDuplex && !stream {
				continue
			}
			f.await("the words of both attempts", func() bool {
				return strings.Count(f.adminGet("/debug/decisions"), "500 at /v1/completions: "+words) == 2*(i+1)
			})
		}
	})
}

func TestWholeAnswersCountAsOK(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet) {
		for i := range 6 {
			f.send(t.Context(), "/v1/completions", completion("hi", 3, i%2 == 0))
		}
		f.await("six", func() bool { return f.metric("baton_requests_total") == 6 })
		require.InDelta(t, 6, f.metric("baton_requests_total", `outcome="ok"`), 0)
	})
}

func TestAnAnswerThatBreaksOffIsCountedAsCut(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet) {
		require.NoError(t, f.decode[0].Sim.SetFault(t.Context(), enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Mid, DelayMS: 500})) // its first half has gone by then
		r := f.send(t.Context(), "/v1/completions", completion("hi", 30, true))
		require.Error(t, r.err)
		f.await("one", func() bool { return f.metric("baton_requests_total") == 1 })
		require.Zero(t, f.metric("baton_requests_total", `outcome="ok"`))
		require.EqualValues(t, 1, f.metric("baton_requests_total", `outcome="cut"`))
		require.Zero(t, f.setAside(), "once is nothing, of a worker that answers its probe")
	})
}

// TestAPlainAnswerThatBreaksOffIsCutOrMadeAnew: the break may come after the
// plugin has let the headers pass and before Envoy has sent a byte on. Then it is
// a fresh attempt, never an error of Envoy's.
func TestAPlainAnswerThatBreaksOffIsCutOrMadeAnew(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 2, config: "routing: {decode: {mode: round-robin}}\nhealth: {probe_interval: 20ms}\n"}, func(t *testing.T, f *fleet) {
		struck := func() uint64 { return countOf(f, enginesim.FaultTruncate) }
		sent, whole := 0, 0
		for i := range 24 {
			before := struck()
			require.NoError(t, f.decode[i%2].Sim.SetFault(t.Context(), enginesim.Fault{Mode: enginesim.FaultTruncate, Count: 1}))
			for struck() == before {
				sent++
				r := f.send(t.Context(), "/v1/completions", completion("breaks off", 30, false))
				require.Equal(t, 200, r.status, "%s", r.body)
				if r.err == nil {
					requireAnswer(t, r, "breaks off", 30)
					whole++
				}
			}
		}
		t.Logf("%d requests, %d answers whole, %d attempts", sent, whole, len(f.gotAll(f.decode)))
	})
}

// countOf counts the requests that a fault has struck at the decode workers.
func countOf(f *fleet, mode enginesim.Mode) (n uint64) {
	for _, r := range f.gotAll(f.decode) {
		if r.Fault == mode {
			n++
		}
	}
	return n
}
