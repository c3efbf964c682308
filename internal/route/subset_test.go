package route

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A plain gateway carries one leg. A hand-off that needs a mirrored one is done
// without, if it may be and somebody can; one through prefill's answer needs only
// our listener.
func TestWhatAPlainGatewayCarries(t *testing.T) {
	listener := func(c *Config) { c.Policy.Rules.Listener = true }
	enforced := func(c *Config) { c.Policy.Rules.Enforced = true }
	for _, c := range []struct {
		name   string
		engine worker.Engine
		alone  bool // decode can serve alone
		change func(*Config)
		twoLeg bool
		fail   *Refusal
		disagg bool
	}{
		{name: "mirrored: one worker instead", engine: worker.SGLang, alone: true},
		{name: "mirrored, and nobody can", engine: worker.SGLang, fail: refuse(NeedsAlone)},
		{name: "mirrored, enforced", engine: worker.SGLang, alone: true, change: enforced, fail: refuse(NeedsAlone)},
		{name: "mirrored, with a listener that is no help", engine: worker.SGLang, alone: true, change: listener},
		{name: "through the answer", engine: worker.VLLM, change: listener, disagg: true},
		{name: "through the answer, without a listener", engine: worker.VLLM, alone: true},
		{name: "through the answer, enforced without a listener", engine: worker.VLLM, alone: true, change: enforced, fail: refuse(NeedsAlone)},
		{name: "two legs", engine: worker.SGLang, twoLeg: true, disagg: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws := engineOf(routetest.Workers(), c.engine)
			ws[2].AcceptsAggregated = c.alone
			r := newRig(t, ws, c.change)
			q, f := r.ask(someBody, func(r *Request) { r.OneLeg = !c.twoLeg })
			require.Equal(t, c.fail, f)
			if f != nil {
				return
			}
			require.Equal(t, c.disagg, q.apart)
			want := SplitReason("")
			if !c.disagg {
				want = OneLeg
			}
			require.Equal(t, want, q.alone)
		})
	}
}

// Tokens are counted by whom the data plane allows, and nobody else.
func TestTokensAreCountedWithinTheSubset(t *testing.T) {
	r := newRig(t, routetest.Workers(), nil)
	q := r.asking(eightTokens)
	asked := func() (out []string) {
		for _, e := range r.Tokenizers(q) {
			out = append(out, e.String())
		}
		slices.Sort(out)
		return out
	}
	require.Equal(t, []string{"127.0.0.1:40000", "127.0.0.1:40001", "127.0.0.1:40002", "127.0.0.1:40003"}, asked())
	q.req.Subset = setOf("127.0.0.1:40001,127.0.0.1:40002")
	require.Equal(t, []string{"127.0.0.1:40001", "127.0.0.1:40002"}, asked())
	q.req.Subset = setOf("")
	require.Empty(t, asked())
}

// The rank goes along in a header, so that it is the same with whoever answers;
// where ranks have ports of their own, the address says it.
func TestAListSaysWhichRankServesAtEachAddress(t *testing.T) {
	for _, ported := range []bool{false, true} {
		ws := routetest.Ported()
		for _, w := range ws {
			w.PortPerRank = ported
		}
		r := newRig(t, routetest.Aggregated(ws), nil)
		world, c := r.cfg.Board.Load(), new(choice)
		c.decision.Rank = worker.Rank{ID: 1, DPRank: 1}
		for _, to := range []worker.Rank{{ID: 4, DPRank: 2}, {ID: 2}} {
			c.then(world.Worker(to.ID), to)
		}
		list, others := destinations(world, c), c.others
		if ported {
			require.Equal(t, "127.0.0.1:40101,127.0.0.1:40402,127.0.0.1:40200", list)
			require.Equal(t, []Destination{{"127.0.0.1:40402", worker.Rank{ID: 4, DPRank: 2}}, {"127.0.0.1:40200", worker.Rank{ID: 2}}}, others)
			continue
		}
		require.Equal(t, "127.0.0.1:40100,127.0.0.1:40400,127.0.0.1:40200", list)
		require.Equal(t, []Destination{{"127.0.0.1:40400", worker.Rank{ID: 4, DPRank: 1}}, {"127.0.0.1:40200", worker.Rank{ID: 2, DPRank: 1}}}, others)
	}
}

// The KV that nobody has fetched is collected by whom the data plane allows, at the
// port of a rank that it allows.
func TestACollectingLegGoesToAnAllowedRank(t *testing.T) {
	r := newRig(t, engineOf(routetest.Ported(), worker.VLLM), nil)
	a := &Again{fit: r.cfg.Board.Load().Workers()[0].Fit(), key: worker.Key{Model: "m"}}
	snap := r.cfg.Board.Load().Snapshot
	for list, want := range map[string]worker.Rank{
		"127.0.0.1:40402": {ID: 4, DPRank: 2}, "127.0.0.1:40301": {ID: 3, DPRank: 1},
		"127.0.0.1": {ID: 3}, "127.0.0.1:40102": {}, "": {},
	} {
		a.subset = setOf(list)
		w, dp := r.Collector(a, snap, nil)
		if want.ID == 0 {
			require.Nil(t, w, list)
			continue
		}
		require.NotNil(t, w, list)
		require.Equal(t, want, worker.Rank{ID: w.ID, DPRank: dp}, list)
	}
	a.subset = nil
	w, dp := r.Collector(a, snap, []worker.ID{3})
	require.Equal(t, worker.Rank{ID: 4}, worker.Rank{ID: w.ID, DPRank: dp})
}
