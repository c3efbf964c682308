package extproc

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// listener stands for Envoy's listener for the plugin's own legs. It returns the address.
func listener(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "prefill.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	srv := httptest.NewUnstartedServer(answer)
	require.NoError(t, srv.Listener.Close())
	srv.Listener = l
	srv.Start()
	t.Cleanup(srv.Close)
	return "unix://" + path
}

func refusing(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"error":{"code":"prefill_rejected"}}`)
	}
}

// If prefill fails in the last attempt, one worker serves the request, if this is configured
// and a worker can serve alone.
func TestWhatPrefillHasFailedForGoodIsServedByOneWorkerAsAFallback(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		status   int
		says     string // with status 200
		attempt  int
		fallback bool
		needs    bool // no decode worker can serve without prefill
		headers  []string
		want     string // the error; "": one worker serves
	}{
		"it is served":                    {status: 500, attempt: 3, fallback: true},
		"nor has it made a token":         {status: 200, says: `{"choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":{"prompt_tokens":8,"completion_tokens":0}}`, attempt: 3, fallback: true},
		"not without the setting":         {status: 500, attempt: 3, want: "prefill_failed"},
		"not where nobody can":            {status: 500, attempt: 3, fallback: true, needs: true, want: "prefill_failed"},
		"not while attempts are left":     {status: 500, attempt: 2, fallback: true, want: "prefill_failed"},
		"not what the engine has refused": {status: 422, attempt: 3, fallback: true, want: "prefill_rejected"},
		"not while prefill is busy":       {status: 429, attempt: 3, fallback: true, want: "prefill_busy"},
		"not a request that names decode": {
			status: 500, attempt: 3, fallback: true, headers: []string{"x-worker-instance-id", "3"}, want: "prefill_failed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			answer := refusing(row.status)
			if row.says != "" {
				answer = saying(row.says)
			}
			at := listener(t, answer)
			ws := prefillFirst(t, func(w *worker.Worker) { w.AcceptsAggregated = !row.needs && w.ID == 3 })
			r := newReplicaOf(t, "a", ws, func(c *Config) {
				c.PrefillListener, c.FallbackAggregated = at, row.fallback
				c.Decode.Mode = picker.RoundRobin
			})
			var filter []string
			if row.headers != nil {
				filter = []string{routingKey, "prerouted"}
			}
			p := r.through(filter...)
			m := p.ask(eightTokens, append(row.headers, "x-envoy-attempt-count", strconv.Itoa(row.attempt))...)
			records := r.srv.cfg.Journal.Recent(nil, 0)
			if row.want != "" {
				_, code, _ := codeOf(t, m)
				require.Equal(t, row.want, code)
				require.Len(t, records, 1)
				require.Equal(t, row.want, records[0].Detail)
			} else {
				set, _ := routed(t, m)
				require.Equal(t, "3", set["x-worker-instance-id"])
				require.NotContains(t, set, "x-prefill-instance-id")
				require.Equal(t, 1, r.book.Totals().Held)
				require.Len(t, records, 2, "the pair has its record, and so has the one")
				require.Equal(t, "one worker: fallback for prefill_failed", records[0].Split)
				require.Equal(t, decision.Routed, records[0].Outcome)
				require.Equal(t, decision.Retried, records[1].Outcome)
				require.Equal(t, "prefill_failed", records[1].Detail)
				require.Equal(t, decision.LegFailed, records[1].Leg)
			}
			p.cancel()
			r.requireIdle()
		})
	}
}
