package route

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/sides"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// differing says that these pairs, of the workers 1 to 4, count the tokens of a prompt differently.
func differing(pairs ...[2]worker.ID) *sides.Apart {
	var b sides.Book
	b.Keep([]worker.ID{1, 2, 3, 4}, nil)
	for _, p := range pairs {
		b.Heard(b.Begin(p[0], p[1]), sides.Counts{Prefill: 9, Decode: 10})
	}
	return b.Apart()
}

// sided is a rig of which these pairs differ.
func sided(t *testing.T, change func(*Config), pairs ...[2]worker.ID) *rig {
	apart := differing(pairs...)
	return newRig(t, routetest.Workers(), func(c *Config) {
		c.Apart = func() *sides.Apart { return apart }
		if change != nil {
			change(c)
		}
	})
}

func TestWhoIsKeptApartIsNotPicked(t *testing.T) {
	pairs := func(r *rig) (out []string) {
		for range 48 {
			d := r.preview(eightTokens)
			out = append(out, fmt.Sprint(d.Prefill.Rank.ID, ">", d.Decode.Rank.ID))
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	all := []string{"1>3", "1>4", "2>3", "2>4"}
	require.Equal(t, all, pairs(sided(t, nil)))
	require.Equal(t, all[1:], pairs(sided(t, nil, [2]worker.ID{1, 3})))
	require.Equal(t, all[2:], pairs(sided(t, nil, [2]worker.ID{1, 3}, [2]worker.ID{1, 4})), "nobody is left for worker 1")
	require.Equal(t, []string{"1>4", "2>3"}, pairs(sided(t, nil, [2]worker.ID{1, 3}, [2]worker.ID{2, 4})))
	require.Equal(t, []string{"1>4"}, pairs(sided(t, nil, [2]worker.ID{1, 3}, [2]worker.ID{2, 3}, [2]worker.ID{2, 4})))

	r := sided(t, nil, [2]worker.ID{1, 3})
	r.cfg.Health.Report(worker.Rank{ID: 4}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	require.Equal(t, []string{"2>3"}, pairs(r), "the partner that worker 1 had is aside")

	// One that an earlier attempt has left to be tried again is passed over, and one that a request names gets a partner
	// that counts as it does.
	for range 16 {
		q, f := r.ask(eightTokens, func(r *Request) { r.Keep = worker.Rank{ID: 1} })
		require.Nil(t, f)
		p, sc := r.tokens(q)
		d, f := r.Decide(q, p, sc, time.Now())
		require.Nil(t, f)
		require.Equal(t, worker.ID(2), d.Prefill.Rank.ID)
	}
	for name, other := range map[string]func(*Decision) worker.ID{
		"x-prefill-instance-id=1": func(d *Decision) worker.ID { return d.Decode.Rank.ID - 2 }, // 4
		"x-worker-instance-id=3":  func(d *Decision) worker.ID { return d.Prefill.Rank.ID },
	} {
		header, id, _ := strings.Cut(name, "=")
		r = sided(t, nil, [2]worker.ID{1, 3})
		for range 16 {
			q, f := r.ask(eightTokens, func(r *Request) {
				r.Trust, r.Named = pin.Prerouted, []pin.Header{{Name: header, Value: id}}
			})
			require.Nil(t, f)
			p, sc := r.tokens(q)
			d, f := r.Decide(q, p, sc, time.Now())
			require.Nil(t, f)
			require.Equal(t, worker.ID(2), other(&d), name)
		}
	}
}

func TestALonePairThatCountsOtherwiseIsRefused(t *testing.T) {
	every := [][2]worker.ID{{1, 3}, {1, 4}, {2, 3}, {2, 4}}
	record, f := sided(t, nil, every...).decided(eightTokens)
	require.Equal(t, &Refusal{Reason: SidesDiffer}, f)
	require.NotEmpty(t, record.Prefill.Rows)

	// One that is aside may be another's partner: the request waits for it.
	r := sided(t, nil, every[:3]...)
	for range 2 {
		r.cfg.Health.Report(worker.Rank{ID: 4}, health.Report{Outcome: health.Overdue}, time.Now())
	}
	_, f = r.decided(eightTokens)
	require.Equal(t, &Refusal{Reason: NoDecode, Returning: true}, f)

	ws := routetest.Workers()
	ws[3].AcceptsAggregated = true
	apart := differing(every...)
	r = newRig(t, ws, func(c *Config) {
		c.Apart, c.Policy.Rules.Fallback = func() *sides.Apart { return apart }, true
	})
	q := r.asking(eightTokens)
	p, sc := r.tokens(q)
	d, f := r.Decide(q, p, sc, time.Now())
	require.Nil(t, f)
	require.False(t, d.Apart)
	require.Equal(t, worker.ID(4), d.Decode.Rank.ID)
	require.Equal(t, Fallback, d.Alone)
}

// TestDecodeIsPickedAgainAmongThoseThatCountAlike: decode leaves while prefill runs.
func TestDecodeIsPickedAgainAmongThoseThatCountAlike(t *testing.T) {
	for differs, want := range map[bool]bool{false: true, true: false} {
		ws := routetest.Workers()
		for _, w := range ws {
			w.Engine = worker.VLLM
		}
		var apart *sides.Apart
		r := newRig(t, ws[1:], func(c *Config) {
			c.Policy.Rules.Listener, c.Apart = true, func() *sides.Apart { return apart }
		})
		q := r.asking(eightTokens)
		p, sc := r.tokens(q)
		d, f := r.Decide(q, p, sc, time.Now())
		require.Nil(t, f)
		if differs {
			apart = differing([2]worker.ID{2, 7 - d.Decode.Rank.ID})
		}
		r.cfg.Health.Report(d.Decode.Rank, health.Report{Outcome: health.ConnectFailed}, time.Now())
		next, why := r.DecodeAgain(d.Again, d.Prefill.Rank, d.Decode.Rank, time.Now())
		require.Equal(t, "was set aside", why)
		require.Equal(t, want, next.Worker != nil)
		collector, _ := r.Collector(d.Again, r.cfg.Board.Load().Snapshot, nil)
		require.NotNil(t, collector, "nobody gets the answer of a collecting leg")
	}
}
