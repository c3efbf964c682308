//go:build real

package real

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

const mooncake = vllm + ", MooncakeConnector"

// TestMooncakeApart: both legs at once, and the KV by TCP. A prefill that was started again
// has another engine id, which decode is told.
func TestMooncakeApart(t *testing.T) {
	s := newScene(t, "enforce_disagg: true\n", "mooncake-p", "mooncake-d")
	p, d := s.sources(worker.Prefill), s.sources(worker.Decode)
	total, n := 0, 0
	ask := func() *answer {
		n++
		return s.ask("/v1/completions", fields{
			"model": "tiny", "prompt": words(uint64(n/2), 200) + fmt.Sprint(n), "max_tokens": 6, "stream": n%2 == 0,
			"stream_options": map[bool]any{true: fields{"include_usage": true}}[n%2 == 0],
		})
	}
	const many = 10
	for range many {
		a := ask()
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.NotNil(t, s.last().Prefill, "served apart")
		require.Equal(t, a.usage.Prompt, s.last().ISL)
		total += a.usage.Prompt
		s.heard()
	}
	p, d = s.sources(worker.Prefill).less(p), s.sources(worker.Decode).less(d)
	tellf(t, mooncake, "apart (TCP), 1 + 1",
		"of %d prompt tokens prefill computed %g and had %g cached; decode computed %g, had %g cached and got %g by transfer",
		total, p.computed, p.cached, d.computed, d.cached, d.transferred)
	require.EqualValues(t, total, p.computed+p.cached, "prefill has had each prompt token once")
	require.EqualValues(t, total, d.computed+d.cached+d.transferred)
	require.LessOrEqual(t, d.computed, float64(many), "decode computes the last token of a prompt at most")
	s.idle()

	e := s.engines[0]
	require.NoError(t, e.Kill())
	s.await("the plugin to know that prefill is gone", func() bool { return ask().status == http.StatusServiceUnavailable })
	require.NoError(t, e.Restart(context.Background()))
	s.await("the pair to serve again", func() bool { return ask().status == http.StatusOK })
	require.NotNil(t, s.last().Prefill)
	require.Zero(t, s.metric("baton_served_alone_total"))
	tellf(t, mooncake, "prefill is killed and back", "refused meanwhile, then served apart again, with the new engine's id")
}
