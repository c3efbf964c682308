//go:build e2e

package envoytest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim"
)

// saturated is the error body of docs/behaviour.md#full-queue.
type saturated struct {
	Error struct {
		Reason    string `json:"reason"`
		Queued    *int64 `json:"queued_isl_tokens"`
		MaxQueued *int64 `json:"max_queued_isl_tokens"`
	}
}

func requireSaturated(t *testing.T, r *reply, limit int64) {
	t.Helper()
	requireError(t, r, 429, "prefill_saturated")
	require.Equal(t, "1", r.header.Get("Retry-After"))
	var e saturated
	require.NoError(t, json.Unmarshal([]byte(r.body), &e))
	require.Equal(t, "prefill_queue_full", e.Error.Reason)
	require.Equal(t, limit, *e.Error.MaxQueued)
	require.GreaterOrEqual(t, *e.Error.Queued, limit)
}

// TestABurstIsRefusedAtTheQueueLimitAndServedOnceItHasDrained is
// docs/behaviour.md#full-queue: slow prefill workers, and more prompts at once than may
// wait for them.
func TestABurstIsRefusedAtTheQueueLimitAndServedOnceItHasDrained(t *testing.T) {
	t.Parallel()
	const limit, burst = 400, 16
	l := layout{
		prefill: 2, decode: 2, prefillArgs: []string{"--serial-prefill"},
		config: fmt.Sprintf("prefill: {max_queued_isl_tokens: %d, overdue_base: 60s}\ntokens: {mode: estimate}\n", limit),
	}
	both(t, l, func(t *testing.T, f *fleet) {
		prompt := func(i int) string { return strings.Repeat(fmt.Sprintf("%02d ", i), 133) } // 100 tokens, by estimate
		type result struct {
			prompt string
			*reply
		}
		f.faultAll(f.prefill, enginesim.Fault{Mode: enginesim.FaultHold})
		results := make(chan result, burst)
		for i := range burst {
			go func() {
				p := prompt(i)
				results <- result{p, f.send(t.Context(), "/v1/completions", completion(p, 2, i%2 == 0))}
			}()
		}
		// Until each of them waits for prefill or has been refused.
		refusals := func() float64 { return f.metric("baton_failures_total", `code="prefill_saturated"`) }
		f.await("all of them to be decided", func() bool { return f.metric("baton_worker_prefill_requests")+refusals() == burst })
		f.await("the page to say so", func() bool { return strings.Contains(f.adminGet("/"), "get 429") })
		r := f.send(t.Context(), "/v1/completions", completion(prompt(97), 2, true), "x-envoy-attempt-count", "2")
		requireSaturated(t, r, limit) // no client can say that it was let in before
		f.faultAll(f.prefill, enginesim.Fault{})
		served, refused := 0, 0
		for range burst {
			r := <-results
			if r.err == nil && r.status == 200 {
				requireAnswer(t, r.reply, r.prompt, 2)
				served++
				continue
			}
			requireSaturated(t, r.reply, limit)
			refused++
		}
		require.GreaterOrEqual(t, served, 4, "what fits the limit, and the one that crosses it")
		require.Positive(t, refused)
		require.Len(t, f.gotAll(f.prefill), served, "who is served has had a prefill")
		require.Len(t, f.gotAll(f.decode), served)
		require.EqualValues(t, refused+1, refusals())
		require.EqualValues(t, limit, f.metric("baton_prefill_queue_limit_tokens"))

		f.await("the queue to drain", func() bool {
			queued, known := f.gauge("baton_prefill_queued_tokens", `model="m"`)
			return known && queued == 0
		})
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt(98), 2, false)), prompt(98), 2)
	})
}
