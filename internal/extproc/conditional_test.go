package extproc

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A request that names a worker is not moved to one worker alone, neither by Conditional nor
// as a fallback.
func TestARequestThatNamesAWorkerIsNotMovedToOne(t *testing.T) {
	for _, header := range []string{"x-worker-instance-id", "x-prefill-instance-id"} {
		id := map[string]string{"x-worker-instance-id": "3", "x-prefill-instance-id": "2"}[header]
		r := newReplicaOf(t, "a", fixed(routetest.AbleAlone()), inSeconds)
		r.holds(worker.Rank{ID: 3}, sixteenTokens, 3)
		p := r.through(routingKey, "prerouted")
		set, _ := routed(t, p.ask(sixteenTokens, header, id))
		require.Equal(t, id, set[header])
		require.NotEmpty(t, set["x-prefill-instance-id"], header)
		p.cancel()
		r.forgetLegs()
		r.requireIdle()
	}
	ws := routetest.AbleAlone()
	routetest.Strand(ws)
	r := newReplicaOf(t, "b", fixed(ws), func(c *Config) { c.FallbackAggregated = true })
	p := r.through(routingKey, "prerouted")
	status, code, _ := codeOf(t, p.ask(sixteenTokens, "x-worker-instance-id", "3"))
	require.Equal(t, "503 no_worker_with_taint", fmt.Sprint(status, " ", code))
	p.cancel()
	r.requireIdle()
}

// A full queue is a 429 (docs/behaviour.md#full-queue), also if one worker could serve
// the request at a lower cost. A fresh attempt is not refused.
func TestALowerCostIsNoWayAroundBackPressure(t *testing.T) {
	for limit, want := range map[int64]int{0: 0, 25: 0, 24: 429, 12: 429} {
		for attempt, want := range map[string]int{"1": want, "2": 0} {
			r := newReplicaOf(t, "a", fixed(routetest.AbleAlone()), func(c *Config) {
				c.MaxQueuedISLTokens = limit
				inSeconds(c)
			})
			held := r.queue(12, 12)
			p := r.open(filterMain)
			m := p.ask(eightTokens, wire.HeaderAttemptCount, attempt)
			require.EqualValues(t, want, m.GetImmediateResponse().GetStatus().GetCode(), "limit %d, attempt %s: %v", limit, attempt, m)
			if want == 0 {
				set, _ := routed(t, m)
				require.Equal(t, "3", set["x-worker-instance-id"])
				require.NotContains(t, set, "x-prefill-instance-id", "it is busy")
			}
			r.accessLog()
			p.cancel()
			for _, h := range held {
				h.Release(time.Now())
			}
			r.requireIdle()
		}
	}
}

// Both the taints that the request requires and the domain of prefill's KV bind the pick of
// decode.
func TestARequestsOwnTaintsHoldWhereADomainBinds(t *testing.T) {
	for enforcement, zone := range map[worker.Enforcement]string{worker.Required: "a", worker.Preferred: "b"} {
		ws := routetest.Zoned(enforcement, map[worker.Enforcement]float64{worker.Preferred: 0.5}[enforcement])
		ws[1].TopologyDomains = map[string]string{"zone": "a"} // prefill is in a, decode in a and b
		for _, w := range ws {
			w.Taints = []string{"gpu=h"}
		}
		ws[2].Taints = nil
		r := newReplicaOf(t, "a", fixed(ws), nil)
		status, body := r.ask(withExt(`"routing_constraints":{"required_taints":["gpu=h"]}`))
		if zone == "a" {
			require.Equal(t, 503, status, "3 lacks the taint, 4 the domain")
			require.Contains(t, body, `"no_worker_with_taint"`)
			continue
		}
		require.Zero(t, status, body)
		rec := r.explain(withExt(`"routing_constraints":{"required_taints":["gpu=h"]}`))
		require.Equal(t, worker.ID(4), rec.Decode.Rank.ID)
		r.forgetLegs()
		r.requireIdle()
	}
}
