package route

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// bySidecar marks a request as one of a gateway with one leg, whose decode pods have a
// sidecar.
func bySidecar(r *Request) { r.OneLeg, r.Sidecar = true, true }

// TestASidecarSendsAnyEnginesPrefillLeg: also that of an engine whose legs would have to be
// mirrored, and without a listener for those of the plugin.
func TestASidecarSendsAnyEnginesPrefillLeg(t *testing.T) {
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM, worker.TensorRTLLM} {
		ws := routetest.Workers()
		for _, w := range ws {
			w.Engine = engine
		}
		r := newRig(t, ws, func(c *Config) { c.Policy.Rules.Sidecar = true })
		q, f := r.ask(eightTokens, bySidecar)
		require.Nil(t, f, engine)
		p, sc := r.tokens(q)
		d, f := r.Decide(q, p, sc, q.now)
		require.Nil(t, f, engine)
		require.True(t, d.Apart)
		require.Equal(t, engines.Sidecar, d.Kind)
		require.Nil(t, d.Again, "the sidecar has the request: no other decode can take over")
		require.Equal(t, decision.LegBySidecar, d.Record.Leg)
		require.True(t, d.Prefill.Made())
		require.Contains(t, []worker.ID{3, 4}, d.Decode.Rank.ID)

		_, f = r.ask(eightTokens, func(r *Request) { r.OneLeg = true })
		require.NotNil(t, f, "without a sidecar nobody sends it")
	}
}

// TestWhatASidecarDoesNotSplitIsServedByOneWorker: several generations, and paths that it
// does not read.
func TestWhatASidecarDoesNotSplitIsServedByOneWorker(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","prompt":"one two three four","n":2}`: "not_disaggregable",
		`{"model":"m","prompt":["one two","three four"]}`:   "not_disaggregable",
		`{"model":"m","prompt":"one two three four"}`:       "",
	} {
		ws := routetest.Workers()
		r := newRig(t, ws, func(c *Config) { c.Policy.Rules.Sidecar = true })
		_, f := r.ask(body, bySidecar)
		require.Equal(t, want, reasonIn(f), body)
		ws = routetest.AbleAlone()
		r = newRig(t, ws, func(c *Config) { c.Policy.Rules.Sidecar = true })
		q, f := r.ask(body, bySidecar)
		require.Nil(t, f, body)
		require.Equal(t, want == "", q.apart, body)
	}
}

// TestAPromptThatMayBeCutGoesToNoSidecarsPair: the sidecar asks prefill for one token, so that
// the engine would keep another part of the prompt there.
func TestAPromptThatMayBeCutGoesToNoSidecarsPair(t *testing.T) {
	for limit, apart := range map[string]bool{"20": false, "1": true} {
		ws := routetest.AbleAlone()
		for _, w := range ws {
			w.Engine, w.MaxModelLen = worker.VLLM, 26
		}
		r := newRig(t, ws, func(c *Config) { c.Policy.Rules.Sidecar = true })
		q, f := r.ask(`{"model":"m","prompt":[1,2,3,4,5,6,7,8],"truncate_prompt_tokens":-1,"max_tokens":`+limit+`}`, bySidecar)
		require.Nil(t, f)
		p, sc := r.tokens(q)
		d, f := r.Decide(q, p, sc, q.now)
		require.Nil(t, f)
		require.Equal(t, apart, d.Apart, limit)
	}
}
