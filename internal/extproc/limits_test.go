package extproc

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// startLimit is how long a plan of the replica lets prefill's leg take to begin.
func (r *replica) startLimit(body string) time.Duration {
	rules := testRules()
	rules.maxBodyBytes = 1 << 30
	s := &mainStream{m: *withBody(rules, []byte(body))}
	p := &plan{disaggregated: true, kind: handoff.Rendezvous, prefill: worker.Rank{ID: 1}, decode: worker.Rank{ID: 2}}
	s.srv = r.srv
	(&asking{mainStream: s}).limit(p, worker.Key{Model: "m"}, []byte(body), time.Now())
	return p.startWithin
}

// TestTheTimeToBeginGrowsWithTheBodyAndWithWhatIsInFlight: both have to pass Envoy before
// a leg can begin.
func TestTheTimeToBeginGrowsWithTheBodyAndWithWhatIsInFlight(t *testing.T) {
	r := newReplicaOf(t, "a", fixed(routetest.Many(1)), func(c *Config) { c.StartTimeout = time.Second })
	body := func(n int) string { return `{"model":"m","prompt":"` + strings.Repeat("x", n) + `"}` }
	small := r.startLimit(body(10))
	require.InDelta(t, time.Second, small, float64(time.Millisecond), "nothing weighs")
	require.InDelta(t, 3*time.Second, r.startLimit(body(40<<20)), float64(time.Millisecond), "20 MiB pass in a second at least")

	for nonce := range uint64(500) {
		r.srv.attempts.add(nonce+1, &mainStream{})
	}
	require.Equal(t, small+500*time.Millisecond, r.startLimit(body(10)))
	for nonce := range uint64(500) {
		r.srv.attempts.remove(nonce + 1)
	}
	require.Equal(t, small, r.startLimit(body(10)), "and shrinks again")
}

// TestALegThatDoesNotBeginBlamesNobodyAndNeverEndsTheLastAttempt: it has met no worker.
func TestALegThatDoesNotBeginBlamesNobodyAndNeverEndsTheLastAttempt(t *testing.T) {
	for _, kind := range []handoff.Kind{handoff.Rendezvous, handoff.NIXLPull} {
		for attempt := 1; attempt <= 3; attempt++ {
			g := newPlayground(t, 1, kind, 2, 2)
			p := &plan{
				disaggregated: true, kind: kind, token: "sealed", decodeAddr: "a", prefill: worker.Rank{ID: 100}, decode: worker.Rank{ID: 200},
				startWithin: 3 * time.Second, overdueAfter: 6 * time.Second, answerWithin: 30 * time.Second,
			}
			p.spare.Prefill, p.spare.Decode = true, true
			x := &attemptPlay{g: g, m: mainOf(testRules(), way{}), plan: p, number: attempt}
			x.begin()
			x.wait(3*time.Second - 1)
			require.True(t, x.m.awaitsAnswer(), "%s, attempt %d: it has its time", kind, attempt)
			x.wait(testRules().prefillTimeout - 4*time.Second)
			require.Equal(t, attempt == 3, x.m.awaitsAnswer(), "%s, attempt %d: the last one waits on", kind, attempt)
			require.Empty(t, learnedBy(x.m).avoid, "nobody has failed")
			require.Zero(t, g.told, "nobody is charged or probed")
		}
	}
}

// TestALegThatDoesNotBeginBlamesWhomEnvoyNames: a connection that was refused is the
// worker's, whether or not its leg had begun.
func TestALegThatDoesNotBeginBlamesWhomEnvoyNames(t *testing.T) {
	for attempt := 1; attempt <= 3; attempt++ {
		g := newPlayground(t, 1, handoff.Rendezvous, 2, 2)
		p := &plan{
			disaggregated: true, token: "sealed", decodeAddr: "a", prefill: worker.Rank{ID: 100}, decode: worker.Rank{ID: 200},
			startWithin: time.Second, overdueAfter: 6 * time.Second, answerWithin: 30 * time.Second,
		}
		x := &attemptPlay{g: g, m: mainOf(testRules(), way{}), plan: p, number: attempt}
		x.begin()
		x.send(&event{kind: evLeg, leg: legReport{state: legFailed, reason: blame.Unconnected}})
		require.Equal(t, map[worker.ID]int{100: 1}, g.aside)
		require.Equal(t, []worker.Rank{p.prefill}, learnedBy(x.m).avoid)
	}
}
