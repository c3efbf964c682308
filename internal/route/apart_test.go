package route

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Of three engines those are picked that have somebody for decode.
func TestOfThreeEnginesThoseArePickedThatHaveDecode(t *testing.T) {
	ws := routetest.Workers()
	for i, w := range ws {
		w.Engine = []worker.Engine{worker.SGLang, worker.VLLM}[i%2]
		if w.Engine == worker.VLLM {
			w.Bootstrap = worker.Bootstrap{}
		}
	}
	e, err := worker.ParseEndpoint("127.0.0.1:40005")
	require.NoError(t, err)
	third := *ws[0]
	third.ID, third.Endpoint, third.Engine, third.KVEvents = 5, e, worker.TensorRTLLM, worker.KVEvents{}
	r := newRig(t, append(ws, &third), func(c *Config) { c.Policy.Rules.Listener = true })
	q := r.asking(eightTokens)
	require.Len(t, q.pool.Prefill, 3)
	require.Equal(t, []worker.Rank{{ID: 1}, {ID: 2}}, (&decider{Router: r.Router, q: q}).ranks(worker.Prefill))
}
