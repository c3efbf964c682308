//go:build e2e

package envoytest

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestALegOfOursBringsWhatAMirroredOneBrings compares the headers that a prefill worker
// gets of the same request: of SGLang, whose leg Envoy mirrors, and of vLLM, whose leg the
// plugin sends.
func TestALegOfOursBringsWhatAMirroredOneBrings(t *testing.T) {
	t.Parallel()
	asked := []string{
		"Authorization", "Bearer tenant-key", "X-Api-Key", "k", "X-Tenant-Id", "a", "Baggage", "user=7", "Tracestate", "v=1",
		"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Request-Timeout-Ms", "60000", "Accept", "application/json",
		// What only routers may set.
		"X-Bootstrap-Room", "7", "X-Prefiller-Host-Port", "10.0.0.1:1", "X-Baton-Start", "1", "X-Dp-Rank", "3", "Target-Pod", "p",
		// What is of one connection.
		"Te", "trailers", "Connection", "keep-alive",
	}
	both(t, layout{prefill: 1, decode: 1, simArgs: []string{"--engine", "vllm"}}, func(t *testing.T, own *fleet) {
		mirrored := newFleet(t, layout{prefill: 1, decode: 1, fullDuplex: own.fullDuplex})
		brought := func(f *fleet) http.Header {
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("who asks", 2, false), asked...), "who asks", 2)
			got := f.ended(f.prefill)
			require.Len(t, got, 1)
			return got[0].Headers
		}
		of, ours := brought(mirrored), brought(own)
		for _, name := range []string{"Authorization", "X-Api-Key", "X-Tenant-Id", "Baggage", "Tracestate", "X-Request-Timeout-Ms", "Accept"} {
			require.NotEmpty(t, ours.Get(name), name)
			require.Equal(t, of.Values(name), ours.Values(name), name)
		}
		require.Equal(t, trace(of), trace(ours))
		routed := func(name string) bool { // to decode, or by SGLang's own ways; and of one connection
			for _, p := range []string{"X-Worker-", "X-Prefill-", "X-Bootstrap-", "X-Attempt-Id", "X-Gateway-", "X-Dp-Rank", "Te"} {
				if strings.HasPrefix(name, p) {
					return true
				}
			}
			return false
		}
		for _, name := range slices.Sorted(maps.Keys(of)) {
			if !routed(name) {
				require.Contains(t, ours, name, "a mirrored leg brings it")
			}
		}
		for _, name := range slices.Sorted(maps.Keys(ours)) {
			if name != "Content-Length" { // in full duplex a mirrored leg comes in chunks
				require.Contains(t, of, name, "only a leg of ours brings it")
			}
			require.False(t, strings.HasPrefix(name, "X-Bootstrap-") || strings.HasPrefix(name, "X-Baton-") || strings.HasPrefix(name, "X-Envoy-"), name)
		}
		for _, name := range []string{"X-Bootstrap-Room", "X-Prefiller-Host-Port", "Target-Pod", "Te"} {
			require.NotContains(t, ours, name)
		}
	})
}

// trace is the trace that a request belongs to.
func trace(h http.Header) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(h.Get("Traceparent"), "00-"), "-")
	return id
}
