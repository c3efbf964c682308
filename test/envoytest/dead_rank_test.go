//go:build e2e

package envoytest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestOneOfFourRanksDiesAndComesBack: the only decode worker has four data-parallel
// ranks, each with a port of its own. The process of one of them dies: every request is
// served, by the other three. It is started again, and each has its turn; then the worker
// dies with all of them, as an engine does that runs them in one process. Nothing is ever
// served by one leg alone, and what is refused is told to try again.
func TestOneOfFourRanksDiesAndComesBack(t *testing.T) {
	t.Parallel()
	withEtcd(t, modes("round-robin", "round-robin")+"health: {probe_interval: 100ms}\n", func(t *testing.T, f *etcdFleet) {
		f.tempted = true
		f.pods("prefill", 1)
		f.pods("aggregated", 1)
		decode := f.fourRanks()
		require.Equal(t, map[int]int{0: 3, 1: 3, 2: 3, 3: 3}, f.byRank(decode, "before it all"))

		const dead = worker.DPRank(2)
		f.fault(decode.worker, enginesim.Fault{Mode: enginesim.FaultRefuse, Port: decode.worker.Info.EndpointOf(dead).String()})
		for met := false; !met; { // its port is tried by a request, which the client does not see
			f.requireServed(f.ask(), "as one rank is dead")
			met = f.metric("baton_aside_transitions_total", `to="aside"`) > 0
		}
		by := f.byRank(decode, "without one rank")
		require.ElementsMatch(t, []int{0, 1, 3}, slices.Collect(maps.Keys(by)))
		require.EqualValues(t, 1, f.metric("baton_workers", `role="decode"`, `state="partly aside"`))
		f.await("the page to name it alone: the pages of the others, which are suspected, take a second", func() bool {
			return strings.Contains(f.adminGet("/debug/state"), `"reason": "rank 2: connect-failed"`)
		})
		for _, s := range f.burst(12) {
			f.requireServed(s, "without one rank, at once")
		}

		f.fault(decode.worker, enginesim.Fault{})
		f.await("the rank to serve again", func() bool {
			f.requireServed(f.ask(), "as the rank is back")
			return f.metric("baton_workers", `role="decode"`, `state="healthy"`) == 1
		})
		require.Equal(t, map[int]int{0: 3, 1: 3, 2: 3, 3: 3}, f.byRank(decode, "with the rank back"))

		f.kill(decode)
		f.awaitGone(decode)
		f.requireTyped(f.ask(), "without the worker", "no_decode_worker")
		require.Len(t, f.byRank(f.fourRanks(), "with a new worker"), 4)
		f.requireNoneAggregated()
	})
}

// fourRanks starts a decode worker whose ranks have ports of their own.
func (f *etcdFleet) fourRanks() *member {
	f.t.Helper()
	m := f.engine("decode", "--dp-size", "4", "--port-per-rank")
	f.announce(m, "--port-per-rank")
	f.awaitSeen(m)
	return m
}

// byRank sends twelve requests, which have to be served, and returns how many each rank
// of the worker got.
func (f *etcdFleet) byRank(m *member, when string) map[int]int {
	f.t.Helper()
	before := len(f.got(m.worker))
	for range 12 {
		f.requireServed(f.ask(), when)
	}
	by := map[int]int{}
	for _, r := range f.got(m.worker)[before:] {
		by[r.DPRank]++
	}
	return by
}
