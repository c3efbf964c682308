//go:build e2e

package envoytest

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/enginesim"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestOneOfFourRanksDiesAndComesBack: the only decode worker has four data-parallel
// ranks. The process of one of them dies, and is started again; then the worker dies with
// all of them, as an engine does that runs them in one process. Nothing is ever served by
// one leg alone; what is refused is told to try again; and once the rank is back every
// request is served, by each rank in turn.
func TestOneOfFourRanksDiesAndComesBack(t *testing.T) {
	t.Parallel()
	bothEtcd(t, modes("round-robin", "round-robin")+"health: {probe_interval: 100ms}\n", func(t *testing.T, f *etcdFleet) {
		f.tempted = true
		f.pods("prefill", 1)
		f.pods("aggregated", 1)
		decode := f.fourRanks()
		require.Equal(t, map[int]int{0: 3, 1: 3, 2: 3, 3: 3}, f.byRank(decode, "before it all"))

		const dead = worker.DPRank(2)
		f.fault(decode.worker, enginesim.Fault{Mode: enginesim.FaultRefuse, Port: decode.worker.Info.EndpointOf(dead).String()})
		for met := false; !met; { // its port is tried by a request, and it is no longer used
			s := f.ask()
			f.requireServedOrTyped("without one rank", []sent{s})
			met = f.metric("baton_aside_transitions_total", `to="aside"`) > 0
		}
		f.requireServedOrTyped("without one rank", f.burst(12))

		f.fault(decode.worker, enginesim.Fault{})
		f.await("the worker to serve again", func() bool {
			s := f.ask()
			f.requireServedOrTyped("as the rank is back", []sent{s})
			return s.status == http.StatusOK && f.metric("baton_workers", `role="decode"`, `state="healthy"`) == 1
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
