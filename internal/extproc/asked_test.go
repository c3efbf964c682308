package extproc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// An explained request books nothing, so the model does not become known by it. A request
// that is served makes it known.
func TestAQuestionIsNoReasonToKnowAModel(t *testing.T) {
	r := newReplica(t, "a", nil)
	key := worker.Key{Model: "m"}
	pace := func() float64 {
		r.srv.lately.Wrote(key, 600, 10)
		return r.srv.lately.Expect(key, outlen.NotSaid).PerSecond
	}
	r.explain(eightTokens)
	require.InDelta(t, 30, pace(), 0)
	p := r.open(filterMain)
	p.ask(eightTokens)
	require.InDelta(t, 60, pace(), 0)
	p.cancel()
	r.forgetLegs()
	r.requireIdle()
}
