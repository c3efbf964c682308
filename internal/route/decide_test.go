package route

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Every request pays for a decision. What it allocates does not grow with the fleet: the
// question, two bookings, the address, names, and what decode is picked by once more.
func TestWhatADecisionAllocatesIsBounded(t *testing.T) {
	for name, row := range map[string]struct {
		engine worker.Engine
		most   float64
	}{
		"a rendezvous":  {worker.SGLang, 6},
		"prefill first": {worker.VLLM, 7},
	} {
		for _, n := range []int{2, 64} {
			ws := engineOf(routetest.Many(n), row.engine)
			for _, w := range ws {
				w.KVEvents = worker.KVEvents{Host: "127.0.0.1", Port: 5557} // else what is routed is kept, which grows
			}
			r := newRig(t, ws, func(c *Config) { c.Policy.Rules.Listener = true })
			req := Request{Now: time.Now(), Scan: new(openai.Request), Body: []byte(sixteenTokens)}
			require.NoError(t, openai.Scan(openai.Completions, req.Body, req.Scan))
			p, sc := r.tokens(r.asking(sixteenTokens))
			got := testing.AllocsPerRun(200, func() {
				q, f := r.Ask(req)
				if f != nil {
					t.Error(f.Reason)
					return
				}
				d, f := r.Decide(q, p, sc, req.Now)
				if f != nil || !d.Apart {
					t.Error(f, d.Apart)
				}
				d.Cancel(req.Now)
			})
			t.Logf("%s, %d workers of a role: %v", name, n, got)
			require.LessOrEqual(t, got, row.most, "%s, %d workers of a role", name, n)
		}
	}
}

// A decision that panics books nothing: a part that fails must not keep load on a worker.
func TestADecisionThatPanicsBooksNothing(t *testing.T) {
	r := newRig(t, routetest.Workers(), nil)
	q := r.asking(eightTokens)
	p, sc := r.tokens(q)
	r.cfg.Routes = nil // what was picked cannot be noted
	require.Panics(t, func() { _, _ = r.Decide(q, p, sc, time.Now()) })
	require.Zero(t, r.cfg.Book.Totals().Held)
}

// A request that asks who would serve it, and a preview, leave nothing behind.
func TestAPreviewLeavesNothing(t *testing.T) {
	r := newRig(t, routetest.Workers(), nil)
	asks := withExt(`"annotations":["query_instance_id:"]`)
	for _, unheard := range []func(*Request){func(*Request) {}, func(r *Request) { r.Trust, r.HeadersOnly = pin.Prerouted, true }} {
		_, f := r.ask(asks, unheard)
		require.Equal(t, "forbidden_field", reasonIn(f), "where bodies come from strangers")
	}
	q, f := r.ask(asks, func(r *Request) { r.Trust = pin.Prerouted })
	require.Nil(t, f)
	require.True(t, q.Asks())
	p, sc := r.tokens(q)
	d, f := r.Decide(q, p, sc, time.Now())
	require.Nil(t, f)
	require.True(t, d.Apart)
	later := r.preview(eightTokens)
	require.True(t, later.Decode.Made())
	require.Nil(t, d.Prefill.Booking)
	require.Nil(t, d.Decode.Booking)
	require.Zero(t, r.cfg.Book.Totals().Held)
	for id := worker.ID(1); id <= 4; id++ {
		st, _ := r.index.Stats(worker.Rank{ID: id})
		require.Zero(t, st.Routed)
	}
}

// What an engine leaves of a prompt may depend on how much it takes.
func TestAQuestionKnowsHowLongAPromptItsEngineTakes(t *testing.T) {
	t.Parallel()
	w := loaded(t, 1, worker.VLLM, "v")
	w.MaxModelLen = 100
	q, f := asked(t, routetest.Board(time.Now(), []*worker.Worker{w}), openai.Completions, `{"model":"v","prompt":"x"}`)
	require.Nil(t, f)
	require.Equal(t, 100, q.Query().MaxModelLen)
	require.True(t, q.Query().Renders)
}
