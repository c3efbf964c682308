package extproc

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Each attempt after the first is counted once: with the failure, if the plugin gave up the
// attempt before, otherwise as Envoy's.
func TestAttemptsThatEnvoyMakesOnItsOwnWordAreCounted(t *testing.T) {
	t.Parallel()
	tele, err := telemetry.New(telemetry.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, tele.Shutdown(t.Context())) }()
	r := newReplica(t, "a", func(c *Config) { c.Telemetry = tele.Instruments })
	attempt := func(n int, status string) {
		p := r.open(filterMain)
		defer p.cancel()
		m := p.ask(someBody, "x-envoy-attempt-count", strconv.Itoa(n), "x-request-id", "one")
		require.NotNil(t, m.GetRequestBody(), "%v", m)
		if status != "" {
			p.responseHeaders(status)
			require.NotNil(t, p.recv().GetImmediateResponse())
		}
	}
	counted := func(samples ...string) {
		t.Helper()
		w := httptest.NewRecorder()
		tele.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
		for _, s := range samples {
			require.Contains(t, w.Body.String(), "baton_fresh_picks_total{reason="+s+"\n")
		}
	}
	attempt(1, "500")
	attempt(2, "") // the plugin gave up the attempt before
	counted(`"decode_failed"} 1`)
	attempt(3, "") // Envoy began it by itself
	counted(`"decode_failed"} 1`, `"envoy"} 1`)
	r.forgetLegs()
	r.requireIdle()
}

// What Envoy's log tells of an attempt goes on to the next one, though Envoy has begun that
// by itself.
func TestWhatARequestHasLostGoesOn(t *testing.T) {
	a := newAvoidList(time.Minute)
	q := &leg.Request{Attempt: 1}
	q.Headers.RequestID = "one"
	a.lost(q, 1, worker.Rank{ID: 9}, time.Now())
	q.Attempt = 2
	before, ours := a.of(q)
	require.Equal(t, 1, before.Lost)
	require.Equal(t, []worker.Rank{{ID: 9}}, before.Avoid)
	require.False(t, ours)
}
