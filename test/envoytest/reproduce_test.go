//go:build e2e

package envoytest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim"
)

// The two patterns that this project began with, and the sweep of bursts, on a
// real Envoy with etcd leases and processes that are killed. `make reproduce`
// prints what was measured.

const (
	pattern1Rounds = 10
	pattern2Rounds = 5
)

// away are the refusals that are right while nobody could serve.
var away = []string{"no_decode_worker", "decode_unreachable", "no_worker"}

// firstServed sends one request after the other until one is served, and
// returns it. Each refusal must be typed.
func (f *etcdFleet) firstServed(codes ...string) sent {
	f.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		s := f.ask()
		if s.err == nil && s.status == 200 {
			f.requireServed(s, "the first answer")
			return s
		}
		f.requireTyped(s, "before the first answer", codes...)
		require.True(f.t, time.Now().Before(deadline), "nothing is served: %s", s.body)
	}
}

// firstAfter reports how long after the first registration of the members the
// first of the answers was whole.
func (f *etcdFleet) firstAfter(r *registrations, all []sent, ms ...*member) time.Duration {
	f.t.Helper()
	var answered time.Time
	for _, s := range all {
		if at := s.at.Add(s.took); s.status == http.StatusOK && (answered.IsZero() || at.Before(answered)) {
			answered = at
		}
	}
	require.False(f.t, answered.IsZero())
	var first time.Time
	f.await("etcd's own word on the registration", func() bool {
		first = time.Time{}
		for _, m := range ms {
			if at, ok := r.of(m); ok && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
		return !first.IsZero()
	})
	return answered.Sub(first)
}

func summary(ds []time.Duration) string {
	slices.Sort(ds)
	return fmt.Sprintf("median %s, slowest %s of %d", ds[len(ds)/2].Round(time.Millisecond/10), ds[len(ds)-1].Round(time.Millisecond/10), len(ds))
}

// TestPattern1AllDecodeWorkersLeaveAndReturnWhilePrefillLives is
// docs/behaviour.md#decode-returns: decode first, then the pair serves, then decode is
// rebuilt while prefill lives.
func TestPattern1AllDecodeWorkersLeaveAndReturnWhilePrefillLives(t *testing.T) {
	t.Parallel()
	withEtcd(t, "", func(t *testing.T, f *etcdFleet) {
		rounds := pattern1Rounds
		if f.fullDuplex {
			rounds /= 2
		}
		times := f.watchRegistrations()
		f.tempted = true
		decode := f.pods("decode", 2)
		f.pods("prefill", 1)
		f.pods("aggregated", 1)
		f.requireServed(f.ask(), "before it all")
		var waits []time.Duration
		for round := range rounds {
			f.kill(decode...)
			if round%2 == 0 {
				f.awaitGone(decode...) // else they are rebuilt while the old leases run
			}
			f.requireTyped(f.ask(), "without decode workers", away...)
			decode = []*member{f.engine("decode"), f.engine("decode")}
			f.announce(decode[0])
			f.announce(decode[1])
			s := f.firstServed(away...)
			waits = append(waits, f.firstAfter(times, []sent{s}, decode...))
			for _, s := range f.burst(8) {
				f.requireServed(s, fmt.Sprintf("round %d", round))
			}
			require.Equal(t, "prefill-ready", look(t, f.plugin).activation())
		}
		f.requireNoneAggregated()
		require.Len(t, waits, rounds)
		t.Logf("pattern 1: %d of %d; from registration to the first disaggregated answer: %s", rounds, rounds, summary(waits))
	})
}

// TestPattern2ADecodeSideThatCameAndWentBeforePrefillIsForgotten is
// docs/behaviour.md#decode-came-and-went.
func TestPattern2ADecodeSideThatCameAndWentBeforePrefillIsForgotten(t *testing.T) {
	t.Parallel()
	withEtcd(t, "enforce_disagg: true\n", func(t *testing.T, f *etcdFleet) {
		f.tempted = true
		times := f.watchRegistrations()
		rounds := pattern2Rounds
		if f.fullDuplex {
			rounds = 2
		}
		var waits []time.Duration
		for round := range rounds {
			first := f.pods("decode", 1)
			require.Equal(t, "decode-waiting", look(t, f.plugin).activation())
			f.requireTyped(f.ask(), "before prefill", "disaggregation_enforced")
			f.kill(first...)
			if round%2 == 0 {
				f.awaitGone(first...)
			}
			second := f.pods("decode", 1)
			prefill := f.engine("prefill")
			f.announce(prefill)
			s := f.firstServed("disaggregation_enforced", "decode_unreachable")
			waits = append(waits, f.firstAfter(times, []sent{s}, prefill))
			for _, s := range f.burst(4) {
				f.requireServed(s, fmt.Sprintf("round %d", round))
			}
			if round < rounds-1 {
				f.kill(prefill, second[0])
				f.awaitGone(prefill, second[0], first[0])
			}
		}
		f.requireNoneAggregated()
		t.Logf("pattern 2: %d of %d; from prefill's registration to the first disaggregated answer: %s", rounds, rounds, summary(waits))
	})
}

// trigger is what happens to the two decode workers in a sweep.
type trigger struct {
	name              string
	killed, restarted int
}

func triggers() []trigger {
	return []trigger{
		{"one killed", 1, 0},
		{"both killed", 2, 0},
		{"one killed and restarted", 1, 1},
		{"both killed and restarted at once", 2, 2},
	}
}

// sweep is the count of a burst sweep.
type sweep struct {
	served, refused int
	waits           []time.Duration
}

// TestBurstSweep: one prefill and two decode workers; a trigger; with and
// without a canary request in between, a burst of 20 at once, and another
// after the dead leases have run out.
func TestBurstSweep(t *testing.T) {
	t.Parallel()
	withEtcd(t, "", func(t *testing.T, f *etcdFleet) {
		times := f.watchRegistrations()
		f.tempted = true
		f.pods("prefill", 1)
		f.pods("aggregated", 1)
		decode := f.pods("decode", 2)
		var sum sweep
		for _, tr := range triggers() {
			for _, canary := range []bool{false, true} {
				decode = f.sweepOnce(tr, canary, decode, times, &sum)
			}
		}
		f.requireNoneAggregated()
		require.Equal(t, "prefill-ready", look(t, f.plugin).activation())
		require.GreaterOrEqual(t, sum.refused, 2*40, "bursts that met a fleet without decode workers")
		t.Logf("burst sweep: %d served disaggregated, %d refused with a typed 503 while no decode worker lived, none aggregated; first answer after registration: %s",
			sum.served, sum.refused, summary(sum.waits))
	})
}

// sweepOnce returns the two decode workers that there are after it.
func (f *etcdFleet) sweepOnce(tr trigger, canary bool, decode []*member, times *registrations, sum *sweep) []*member {
	f.t.Helper()
	name := fmt.Sprintf("%s, canary %t", tr.name, canary)
	dead, living := decode[:tr.killed], slices.Clone(decode[tr.killed:])
	f.kill(dead...)
	var all []sent
	if canary {
		all = append(all, f.ask())
	}
	burst := make(chan []sent)
	go func() { burst <- f.burst(20) }()
	for range tr.restarted {
		m := f.engine("decode")
		f.announce(m)
		living = append(living, m)
	}
	all = append(all, <-burst...)
	if tr.restarted == 2 {
		all = append(all, f.firstServed(away...))
		sum.waits = append(sum.waits, f.firstAfter(times, all, living...))
	}
	f.awaitGone(dead...)
	f.awaitSeen(living...)
	for _, s := range all {
		if s.status == http.StatusOK {
			sum.served++
			f.requireServed(s, name)
			continue
		}
		sum.refused++
		require.Equal(f.t, 2, tr.killed, "%s: refused though a decode worker lived: %d %s", name, s.status, s.body)
		f.requireTyped(s, name, away...)
	}
	for _, s := range f.burst(20) {
		if len(living) == 0 {
			sum.refused++
			f.requireTyped(s, name+", after the lease", "no_decode_worker")
			continue
		}
		sum.served++
		f.requireServed(s, name+", after the lease")
	}
	for len(living) < 2 {
		living = append(living, f.pods("decode", 1)...)
	}
	return living
}

// TestTheLossOfPrefillUnderEnforcementIsRefusedUntilItReturns is
// docs/behaviour.md#prefill-lost.
func TestTheLossOfPrefillUnderEnforcementIsRefusedUntilItReturns(t *testing.T) {
	t.Parallel()
	withEtcd(t, "enforce_disagg: true\n", func(t *testing.T, f *etcdFleet) {
		f.tempted = true
		f.pods("decode", 1)
		require.Equal(t, http.StatusServiceUnavailable, f.probe("/readyz?model=m"))
		require.Equal(t, "decode-waiting", look(t, f.plugin).activation())
		f.requireTyped(f.ask(), "before prefill", "disaggregation_enforced")
		require.NotContains(t, f.models(), `"m"`)
		for range 2 {
			prefill := f.pods("prefill", 1)
			f.firstServed("disaggregation_enforced")
			require.Contains(t, f.models(), `"m"`)
			require.Equal(t, http.StatusOK, f.probe("/readyz?model=m"))
			f.kill(prefill...)
			f.awaitGone(prefill...)
			require.Equal(t, "deactivated", look(t, f.plugin).activation())
			f.requireTyped(f.ask(), "after the loss of prefill", "disaggregation_enforced")
			require.NotContains(t, f.models(), `"m"`)
		}
		f.requireNoneAggregated()
		require.Len(t, logLines(f.plugin.Log(), "prefill activation", "from=prefill-ready", "to=deactivated"), 2, "each transition is logged once")
		require.InDelta(t, 2, f.metric("baton_activation_transitions_total", `from="prefill-ready"`, `to="deactivated"`, `cause="prefill_left"`), 0)
	})
}

// TestWithoutEnforcementDecodeWorkersThatCanServeAloneWhilePrefillIsAway is
// docs/behaviour.md#prefill-lost where one worker may serve.
func TestWithoutEnforcementDecodeWorkersThatCanServeAloneWhilePrefillIsAway(t *testing.T) {
	t.Parallel()
	withEtcd(t, "", func(t *testing.T, f *etcdFleet) {
		decode := f.engine("decode", "--accepts-aggregated")
		f.announce(decode, "--accepts-aggregated")
		f.awaitSeen(decode)
		f.requireServed(f.ask(), "alone, before prefill")
		prefill := f.pods("prefill", 1)
		f.requireServed(f.ask(), "with prefill")
		require.NotEqual(t, int64(-1), f.got(decode.worker)[1].Room)
		f.kill(prefill...)
		f.awaitGone(prefill...)
		require.Equal(t, "deactivated", look(t, f.plugin).activation())
		f.requireServed(f.ask(), "alone again")
		got := f.got(decode.worker)
		require.Equal(t, int64(-1), got[len(got)-1].Room)
	})
}

// TestAWorkerThatReturnsStartsClean is docs/behaviour.md#leaves-nothing: blocks and
// load go with it, and are not found again by what comes back at its address. That
// nothing of it is kept in any part is TestNothingIsKeptOfAWorkerThatHasLeft of
// internal/plugin.
func TestAWorkerThatReturnsStartsClean(t *testing.T) {
	t.Parallel()
	for _, events := range []bool{true, false} {
		t.Run(fmt.Sprintf("events %t", events), func(t *testing.T) {
			t.Parallel()
			f := newEtcdFleet(t, events, "tokens: {wait: 3s}\n") // on a busy machine, too, the tokens are exact
			var args []string
			if !events {
				args = []string{"--kv-events-port", "-1"}
			}
			f.pods("decode", 1)
			prefill := f.engine("prefill", args...)
			f.announce(prefill)
			f.awaitSeen(prefill)
			blocks := func() (int64, bool) {
				for _, w := range look(t, f.plugin).Workers {
					if w.Role == "prefill" {
						return w.Ranks[0].IndexBlocks, true
					}
				}
				return 0, false
			}
			prompt := strings.Repeat("the same long beginning of a prompt ", 40)
			overlap := func() int {
				r := f.send(f.ctx, "/v1/completions", completion(prompt, 2, false))
				requireAnswer(t, r, prompt, 2)
				return f.decisions()[0].Prefill.Overlap
			}
			require.Zero(t, overlap())
			f.await("the index to know what prefill holds", func() bool { n, _ := blocks(); return n > 0 })
			require.Positive(t, overlap())

			// Dead with a request on it.
			require.NoError(t, prefill.worker.Sim.SetFault(f.ctx, enginesim.Fault{Mode: enginesim.FaultHang}))
			slow := make(chan sent, 1)
			go func() { slow <- f.ask() }()
			f.await("the prefill to be booked", func() bool { return f.metric("baton_worker_prefill_requests") > 0 })
			f.kill(prefill)
			f.awaitGone(prefill)
			f.requireTyped(<-slow, "its prefill died", "prefill_failed", "prefill_gone", "no_prefill_worker")

			again := f.engine("prefill", append(args, "--listen", prefill.worker.Info.Endpoint.String())...)
			f.announce(again)
			f.awaitSeen(again)
			n, known := blocks()
			require.True(t, known)
			require.Zero(t, n, "it starts clean")
			require.Zero(t, f.metric("baton_worker_prefill_requests"))
			require.Zero(t, overlap())
			got := f.got(again.worker)
			require.Len(t, got, 1)
			require.Zero(t, got[0].CachedTokens)
		})
	}
}
