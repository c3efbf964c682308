package health

import (
	"fmt"
	"math/bits"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// fleetOf is n prefill workers, ids from 1.
func fleetOf(t *testing.T, n int) *worker.Snapshot {
	ws := make([]*worker.Worker, n)
	for i := range ws {
		e, err := worker.ParseEndpoint(fmt.Sprintf("10.%d.%d.%d:8000", i>>16, i>>8&255, i&255))
		require.NoError(t, err)
		ws[i] = &worker.Worker{
			ID: worker.ID(i + 1), Role: worker.Prefill, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"}, DPSize: 1,
			BlockSize: 16, Bootstrap: worker.Bootstrap{Host: "10.0.0.1", Port: 8998},
		}
	}
	s, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	return s
}

// meter counts the work of a Tracker's steps: entries and pools looked at, and
// comparisons of the agendas.
type meter struct {
	tr   *Tracker
	most map[string]int
}

func (m *meter) step(name string, f func()) {
	before := m.tr.touched + m.tr.suspects.steps + m.tr.scheduled.steps + m.tr.arrivals.steps
	f()
	work := m.tr.touched + m.tr.suspects.steps + m.tr.scheduled.steps + m.tr.arrivals.steps - before
	m.most[name] = max(m.most[name], work)
}

// costs makes half of a pool fail in every way, brings it back by probes, and
// returns the most work that a step of each kind has cost.
func costs(t *testing.T, n int) map[string]int {
	tr := New(Config{MaxProbes: 100_000})
	tr.Update(fleetOf(t, n), zero)
	m := &meter{tr: tr, most: map[string]int{}}
	now := zero
	report := func(name string, r Report) {
		for id := worker.ID(1); int(id) <= n/2; id++ {
			now = now.Add(time.Microsecond)
			m.step("report: "+name, func() { tr.Report(rankOf(id), r, now) })
		}
	}
	back := func(v verdict) {
		now = now.Add(time.Hour)
		for {
			var p probe
			var any bool
			m.step("probe: begin", func() { p, any = tr.begin(now) })
			m.step("probe: when", func() { tr.nextDue() })
			if !any {
				return
			}
			now = now.Add(tr.gap)
			m.step("probe: result", func() { tr.probed(p, v, now) })
		}
	}
	back(unwell)
	back(answered)
	report("refused connection", Report{Outcome: ConnectFailed})
	back(answered)
	back(well)
	report("served", Report{})
	report("stalled", Report{Outcome: Overdue, Request: 1})
	report("stalled", Report{Outcome: Overdue, Request: 2})
	back(unconnected)
	back(well)
	report("served", Report{})
	report("error", Report{Outcome: ServerError})
	report("error", Report{Outcome: ServerError})
	report("error", Report{Outcome: ServerError})
	report("served", Report{})
	report("broke off", Report{Outcome: BrokeOff})
	report("slow", Report{Outcome: Overdue, Request: 1})
	report("slow", Report{Outcome: Overdue, Request: 2})
	report("served", Report{})
	report("suspicion", Report{Outcome: BrokeOff})
	back(late)
	back(well)
	for id := worker.ID(1); int(id) < n; id++ {
		m.step("hand-off", func() { tr.HandoffFailed(rankOf(id), rankOf(id+1), now) })
		m.step("mate", func() { tr.AskMate(rankOf(id)) })
		m.step("lookup", func() { tr.Lookup(rankOf(id)) })
	}
	checkInvariants(t, tr)
	return m.most
}

func TestNoStepGrowsFasterThanTheLogarithmOfTheFleet(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("work is counted where invariants are compiled in")
	}
	for _, n := range []int{100, 1000, 10_000} {
		most := costs(t, n)
		t.Logf("%d workers: %v", n, most)
		for name, work := range most {
			// An agenda is left and entered once, at two comparisons a level.
			require.LessOrEqual(t, work, 8+4*bits.Len(uint(n)), "%s at %d workers", name, n)
		}
	}
}

// checkInvariants holds the counters of every pool against its members, and the
// agendas against the states.
func checkInvariants(t *testing.T, tr *Tracker) {
	limited := int64(0)
	var entries []*entry
	for id, es := range *tr.known.Load() {
		for dp, e := range es {
			require.Equal(t, worker.Rank{ID: id, DPRank: worker.DPRank(dp)}, e.rank)
			entries = append(entries, e)
		}
	}
	for _, e := range entries {
		s := e.is()
		if s != Healthy {
			limited++
		}
		switch {
		case s == Aside:
			require.Same(t, &tr.scheduled, e.agenda, "%v", e.rank)
		case s == Probing:
			require.Nil(t, e.agenda)
			require.Equal(t, onSchedule, e.flight)
		case e.agenda != nil:
			require.Same(t, &tr.suspects, e.agenda)
			require.Equal(t, grounded, e.flight)
		}
		require.False(t, e.dead && !s.aside())
		require.False(t, e.loops && (!e.dead || e.reason != ReasonLeadsBack), "%v", e.rank)
	}
	require.Equal(t, limited, tr.limited.Load())
	for _, p := range tr.pools {
		var healthy, doubted int32
		var aside, judged, returning int
		var sum tally
		for _, e := range p.members {
			require.Contains(t, *e.pools.Load(), p)
			sum = sum.plus(e.rate)
			if e.is() == Healthy {
				healthy++
			}
			if e.is() == Doubted {
				doubted++
			}
			if e.is().aside() {
				aside++
				if !e.dead {
					judged++
				}
				if !e.refused {
					returning++
				}
			}
		}
		require.Equal(t, []int32{healthy, doubted}, []int32{p.healthy.Load(), p.doubted.Load()})
		require.Equal(t, []int{aside, judged, returning}, []int{int(p.aside.Load()), p.judged, int(p.returning.Load())})
		require.LessOrEqual(t, judged, p.limit)
		require.InDelta(t, sum.good, p.sum.good, 1e-6)
		require.InDelta(t, sum.bad, p.sum.bad, 1e-6)
	}
	for k, p := range *tr.byRole.Load() {
		require.Contains(t, tr.pools, p)
		var serving []worker.Rank
		for _, e := range p.members {
			require.Equal(t, e.is().away(), tr.Away(e.rank))
			if !e.is().away() {
				serving = append(serving, e.rank)
			}
		}
		require.Equal(t, len(serving) > 0, tr.Spare(k.Key, k.role))
		require.False(t, tr.Spare(k.Key, k.role, append(serving, serving...)...))
		if len(serving) > 0 {
			require.True(t, tr.Spare(k.Key, k.role, serving[1:]...))
		}
	}
	for _, a := range []*agenda{&tr.suspects, &tr.scheduled, &tr.arrivals} {
		for i, x := range a.Heap {
			require.Equal(t, i, x.row)
			require.Same(t, a, x.agenda)
			require.Same(t, x.of, tr.find(x.of.rank))
		}
	}
}
