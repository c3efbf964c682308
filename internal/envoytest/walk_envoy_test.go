//go:build e2e

package envoytest

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/enginesim"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The tests here bring about the rows of the blame table that need another Envoy, another
// replica, or much time.

// inCluster changes the configuration of one of Envoy's clusters of workers.
func inCluster(name, from, to string) func(string) string {
	return func(y string) string {
		at := strings.Index(y, "  - name: "+name+"\n    type: ORIGINAL_DST")
		return y[:at] + strings.Replace(y[at:], from, to, 1)
	}
}

// TestWhatEnvoyKeepsFromAWorkerBlamesNobody: it has no room for a request, or no host.
func TestWhatEnvoyKeepsFromAWorkerBlamesNobody(t *testing.T) {
	t.Parallel()
	none := []string{"circuit_breakers: *limits", "circuit_breakers: {thresholds: [{max_requests: 0}]}"}
	nowhere := map[string][]string{
		"prefill": {"http_header_name: x-prefill-destination-endpoint", "http_header_name: x-nowhere"},
		"decode":  {"http_header_name: x-gateway-destination-endpoint", "http_header_name: x-nowhere"},
	}
	pair, alone := layout{prefill: 1, decode: 1}, layout{aggregated: 1}
	for _, c := range []struct {
		leg     blame.Leg
		sight   blame.Sight
		cluster string
		l       layout
	}{
		{blame.Mirrored, blame.NotSent, "prefill", layoutOf(pair, worker.SGLang)},
		{blame.First, blame.Overflow, "prefill", layoutOf(pair, worker.VLLM)},
		{blame.Decode, blame.Overflow, "decode", layoutOf(pair, worker.SGLang)},
		{blame.Alone, blame.NotSent, "decode", alone},
	} {
		change := none
		if c.sight == blame.NotSent {
			change = nowhere[c.cluster]
		}
		c.l.patch = inCluster(c.cluster, change[0], change[1])
		t.Run(fmt.Sprintf("%s, %s", c.leg, c.sight), func(t *testing.T) {
			both(t, c.l, func(t *testing.T, f *fleet) {
				r := f.send(t.Context(), "/v1/completions", completion("it does not arrive", 4, false))
				require.Equal(t, http.StatusServiceUnavailable, r.status)
				f.awaitOutcomes(1, "failed")
				require.Positive(t, f.saw(c.leg, c.sight))
				require.Positive(t, f.metric("baton_fresh_picks_total"))
				require.Zero(t, f.setAside())
			})
		})
	}
}

// TestAHungDecodeIsOverdue: a fresh attempt, and once nobody else can be tried it is
// waited for.
func TestAHungDecodeIsOverdue(t *testing.T) {
	t.Parallel()
	both(t, layoutOf(layout{prefill: 1, decode: 2, prefillArgs: shortLease}, worker.VLLM), func(t *testing.T, f *fleet) {
		for range 3 { // what an answer takes is learned
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("all is well", 4, false)), "all is well", 4)
		}
		f.faultAll(f.decode, enginesim.Fault{Mode: enginesim.FaultHang})
		r := f.send(t.Context(), "/v1/completions", completion("it hangs", 4, false), "x-request-timeout-ms", "24000")
		requireError(t, r, http.StatusGatewayTimeout, "deadline_exceeded")
		require.Positive(t, f.saw(blame.Decode, blame.Overdue))
		require.Positive(t, f.saw(blame.Decode, blame.Stuck))
		f.faultAll(f.workers, enginesim.Fault{})
	})
}

// TestAnEndThatNobodyTellsIsUnfinished: Envoy's access log does not say whose it is.
func TestAnEndThatNobodyTellsIsUnfinished(t *testing.T) {
	t.Parallel()
	mute := func(y string) string {
		return strings.Replace(y, "additional_request_headers_to_log: [x-attempt-id,", "additional_request_headers_to_log: [", 1)
	}
	both(t, layout{aggregated: 1, patch: mute}, func(t *testing.T, f *fleet) {
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("nobody tells", 4, false), "x-request-timeout-ms", "2000"), "nobody tells", 4)
		f.awaitOutcomes(1, "unfinished")
		require.EqualValues(t, 1, f.saw(blame.Alone, blame.Unfinished))
		require.Zero(t, f.setAside())
	})
}

// TestAPrefillAnswerThatIsTooLongBlamesNobody: what a client asks to know of its prompt
// can be as long.
func TestAPrefillAnswerThatIsTooLongBlamesNobody(t *testing.T) {
	t.Parallel()
	long := append(append([]byte(`{"prompt_logprobs":"`), bytes.Repeat([]byte("x"), 33<<20)...), `"}`...)
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "application/json")
		_, _ = w.Write(long)
	}))
	t.Cleanup(at.Close)
	l := layoutOf(layout{prefill: 1, decode: 1}, worker.VLLM)
	l.describe = func(f *fleet) {
		e, err := worker.ParseEndpoint(strings.TrimPrefix(at.URL, "http://"))
		require.NoError(t, err)
		f.prefill[0].Info.Endpoint = e
	}
	both(t, l, func(t *testing.T, f *fleet) {
		r := f.send(t.Context(), "/v1/completions", completion("how likely was each token", 4, false))
		requireError(t, r, http.StatusBadRequest, "prefill_answer_too_large")
		f.awaitOutcomes(1, "rejected")
		require.EqualValues(t, 1, f.saw(blame.First, blame.TooLong))
		require.Zero(t, f.setAside())
	})
}

// TestALegThatItsCarrierEndsBlamesNobody: the replica that carries it drains, and cuts
// what has not ended by then.
func TestALegThatItsCarrierEndsBlamesNobody(t *testing.T) {
	t.Parallel()
	for _, duplex := range []bool{false, true} {
		t.Run(fmt.Sprintf("full duplex %t", duplex), func(t *testing.T) {
			t.Parallel()
			f, carrier := newApart(t, duplex)
			f.faultAll(f.prefill, enginesim.Fault{Mode: enginesim.FaultHang})
			done := make(chan *reply, 1)
			go func() {
				done <- f.send(t.Context(), "/v1/completions", completion("its carrier drains", 4, false), "x-request-timeout-ms", "4000")
			}()
			f.atWork(blame.Mirrored)
			require.NoError(t, carrier.Signal(syscall.SIGTERM))
			require.GreaterOrEqual(t, (<-done).status, 500)
			require.Positive(t, f.saw(blame.Mirrored, blame.Aborted))
			require.Zero(t, f.setAside())
			f.faultAll(f.workers, enginesim.Fault{})
		})
	}
}
