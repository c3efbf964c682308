//go:build e2e

package envoytest

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestAFallbackServesWhatNoPrefillWorkerCould is the end of
// docs/behaviour.md#first-prefill-fails: with fallback: aggregated one worker serves
// the request, whole and as it came, after the last attempt; it is counted. What the
// engine has refused itself stays refused, and without the setting nothing else happens
// than TestWhenNoPrefillWorkerCanTheClientGetsOneError says.
func TestAFallbackServesWhatNoPrefillWorkerCould(t *testing.T) {
	t.Parallel()
	l := layout{
		prefill: 2, decode: 1, config: spareErrors + "fallback: aggregated\n",
		decodeArgs: []string{"--accepts-aggregated"}, prefillArgs: shortLease,
	}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		f.faultAll(f.prefill, enginesim.Fault{Mode: enginesim.FaultError})
		for i, q := range ask("nobody else can", 6) {
			f.forget()
			r := f.send(t.Context(), q.path, q.body, "x-debug-decision", "1")
			q.require(t, r)
			require.Len(t, f.gotAll(f.prefill), 3, "all attempts come first")
			got := f.gotAll(f.decode)
			require.Len(t, got, 1)
			require.Equal(t, q.body, got[0].Body)
			require.Empty(t, got[0].Headers.Get("X-Prefill-Instance-Id"))
			require.Contains(t, r.header.Get("X-Baton-Decision"), "fallback for prefill_failed")
			require.EqualValues(t, i+1, f.metric("baton_served_alone_total", `reason="fallback"`))
			require.EqualValues(t, 3*(i+1), f.metric("baton_fresh_picks_total", `reason="prefill_failed"`))
		}
		require.Zero(t, f.metric("baton_failures_total"))

		f.forget()
		f.faultAll(f.prefill, enginesim.Fault{Mode: enginesim.FaultError, Status: http.StatusUnprocessableEntity})
		refused := f.send(t.Context(), "/v1/completions", completion("not like this", 2, false))
		require.NoError(t, refused.err)
		require.Equal(t, http.StatusUnprocessableEntity, refused.status)
		f.faultAll(f.prefill, enginesim.Fault{Mode: enginesim.FaultError, Status: http.StatusTooManyRequests})
		requireError(t, f.send(t.Context(), "/v1/completions", completion("busy", 2, false)), http.StatusTooManyRequests, "prefill_busy")
		require.Empty(t, f.gotAll(f.decode))
	})
}
