//go:build e2e

package envoytest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// This file is for who serves in place of the one who was picked: the next of an
// ordered list, or whom the data plane falls back to.

// inTurn takes workers in turn, so that each is met.
const inTurn = "routing: {prefill: {mode: round-robin}, decode: {mode: round-robin}, aggregated: {mode: round-robin}}\n"

// listed is a configuration that names n endpoints, best first.
func listed(n int) string {
	return fmt.Sprintf("gateway: {enabled: true, endpoints: %d}\n", n) + inTurn
}

// elsewhere is how often another has served than was picked.
func (f *fleet) elsewhere(where string) float64 {
	return f.metric("baton_served_elsewhere_total", fmt.Sprintf("where=%q", where))
}

// newestPage is what is noted of the newest decision.
func (f *fleet) newestPage() string {
	f.t.Helper()
	return f.adminGet("/debug/decisions?n=1")
}

// destinationsSeen returns the list that came with the newest request of whoever
// served it.
func (f *fleet) destinationsSeen() (list []string, by *stack.Worker) {
	f.t.Helper()
	for _, w := range f.workers {
		if !alive(w) {
			continue
		}
		if got := f.got(w); len(got) > 0 {
			require.Nil(f.t, by, "one worker has served")
			values := got[len(got)-1].Headers.Values(destination)
			require.Len(f.t, values, 1)
			list, by = strings.Split(values[0], ","), w
		}
	}
	require.NotNil(f.t, by)
	return list, by
}

// TestTheNextOfTheListServesInADeadOnesPlace: the client sees nothing of it, the
// booking moves to who serves, the record says so, and the dead are set aside.
func TestTheNextOfTheListServesInADeadOnesPlace(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 3; n++ {
		t.Run(fmt.Sprintf("%d endpoints", n), func(t *testing.T) {
			t.Parallel()
			l := layout{aggregated: 4, config: listed(n), gateway: &envoy.GatewayParams{}, simArgs: []string{"--decode-us-per-token", "20000"}}
			both(t, l, func(t *testing.T, f *fleet) {
				q := ask("who is named", 2)[0]
				q.require(t, f.send(t.Context(), q.path, q.body))
				list, by := f.destinationsSeen()
				require.Len(t, list, n)
				require.Equal(t, by.Info.Endpoint.String(), list[0], "the best of them serves")
				for i, a := range list {
					require.NotContains(t, list[i+1:], a)
				}
				require.Zero(t, f.metric("baton_served_elsewhere_total"))

				dead := f.workers[:max(n-1, 1)] // with one endpoint Envoy falls back to any other
				// They take turns, and a turn of moves is as long as its answer: one of those that
				// live has it before one of the dead.
				for i := 0; len(dead) == 1 && by != f.workers[2] && i < 2*len(f.workers); i++ {
					f.forget()
					q.require(t, f.send(t.Context(), q.path, q.body))
					_, by = f.destinationsSeen()
				}
				for _, w := range dead {
					require.NoError(t, w.Kill())
				}
				f.moves(t, dead)
				f.await("the dead to be set aside", func() bool {
					for i := range 8 {
						prompt := fmt.Sprintf("in the dead one's place %d", i)
						requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 2, i%2 == 0)), prompt, 2)
					}
					return f.metric("baton_workers", `state="aside"`) == float64(len(dead))
				})
				before := f.elsewhere("other")
				for range 6 {
					q.require(t, f.send(t.Context(), q.path, q.body))
				}
				require.Equal(t, before, f.elsewhere("other"), "nobody is sent to the dead any more")
				require.Zero(t, f.elsewhere("unknown"))
			})
		})
	}
}

// moves sends long answers until one is served in a dead worker's place, and holds
// what is booked and noted against who serves it.
func (f *fleet) moves(t *testing.T, dead []*stack.Worker) {
	t.Helper()
	for range 2 * len(f.workers) {
		q := ask("the booking moves", 80)[2]
		c := f.begin(q)
		f.await("the answer to have begun", func() bool {
			running := 0
			for _, w := range f.workers[len(dead):] {
				s, _ := f.state(w)
				running += s.Running
			}
			return running == 1 && f.metric("baton_worker_decode_requests") == 1
		})
		by := ""
		for _, w := range f.workers[len(dead):] {
			if s, _ := f.state(w); s.Running == 1 {
				by = w.Info.ID.String()
			}
		}
		f.await("the booking to be with who serves", func() bool {
			return f.metric("baton_worker_decode_requests", fmt.Sprintf("worker_id=%q", by)) == 1
		})
		require.EqualValues(t, 1, f.metric("baton_worker_decode_requests"), "and with nobody else")
		q.require(t, <-c.reply)
		require.Equal(t, by, f.decisions()[0].Decode.WorkerID)
		if f.elsewhere("other") > 0 {
			ids := make([]string, len(dead))
			for i, w := range dead {
				ids[i] = w.Info.ID.String()
			}
			require.Regexp(t, "in place of ("+strings.Join(ids, "|")+")/0, by the gateway's word", f.newestPage())
			return
		}
	}
	require.Fail(t, "no dead worker was ever picked")
}

// TestTwoLegsNameOneEndpoint, whatever list is configured: decode's address is
// exact, and what is wrong with it is mended by a fresh pair.
func TestTwoLegsNameOneEndpoint(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 2, config: listed(3) + "prefill: {orphan_grace: 300ms}\n", gateway: &envoy.GatewayParams{}, twoLegs: true}, func(t *testing.T, f *fleet) {
		require.NoError(t, f.decode[0].Kill())
		for i := range 4 {
			prompt := fmt.Sprintf("one of two %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, true)), prompt, 4)
		}
		for _, q := range f.gotAll(f.decode[1:]) {
			require.Equal(t, []string{f.decode[1].Info.Endpoint.String()}, q.Headers.Values(destination))
		}
		require.Positive(t, f.metric("baton_fresh_picks_total", `reason="decode_unreachable"`))
		require.Zero(t, f.metric("baton_served_elsewhere_total"))
	})
}

// allowing asks q within a subset until it is served: who was not reached is set
// aside, and comes back with a probe.
func (f *fleet) allowing(q question, hint any, answer string) (r *reply) {
	f.t.Helper()
	f.await("the allowed to be back", func() bool {
		r = f.send(f.t.Context(), q.path, q.body, subsetHeader, subsetHint(f.t, hint))
		return r.status != http.StatusServiceUnavailable
	})
	require.Equal(f.t, http.StatusOK, r.status, r.body)
	if answer != "" {
		q.require(f.t, r)
	}
	return r
}

// TestRanksOfOnePodAreEndpoints of their own: a subset's port means one rank, a list
// names several, and the one that serves has the booking.
func TestRanksOfOnePodAreEndpoints(t *testing.T) {
	t.Parallel()
	l := ownPorts(layout{aggregated: 2, config: listed(3), gateway: &envoy.GatewayParams{SubsetHeader: subsetHeader}})
	l.beforeEnvoy = func(f *fleet) {
		for i, w := range f.workers {
			for dp := range w.Info.DPSize {
				if i == 1 && dp == 1 {
					continue // known to us, and not of the pool
				}
				f.gateway.Pool = append(f.gateway.Pool, w.Info.EndpointOf(worker.DPRank(dp)).String())
			}
		}
	}
	both(t, l, func(t *testing.T, f *fleet) {
		at := func(i int, dp worker.DPRank) string { return f.workers[i].Info.EndpointOf(dp).String() }
		one := func(hint any) enginesim.Request {
			t.Helper()
			f.forget()
			q := ask("ranked", 2)[0]
			f.allowing(q, hint, q.answer)
			return f.ended(f.workers)[0]
		}
		for i := range 2 {
			for _, dp := range []int{0, 2} {
				seen := one(at(i, worker.DPRank(dp)))
				requireRank(t, "only", seen, dp)
				require.Equal(t, at(i, worker.DPRank(dp)), seen.Headers.Get(destination))
				d := f.decisions()[0].Decode
				require.Equal(t, f.workers[i].Info.ID.String(), d.WorkerID)
				require.Equal(t, dp, d.DPRank)
			}
		}
		require.Len(t, strings.Split(one([]any{at(0, 0), at(0, 1), at(1, 2)}).Headers.Get(destination), ","), 3)
		require.Zero(t, f.metric("baton_served_elsewhere_total"))
		for range 3 { // in turn: the rank that the pool has not is named first in some
			seen := one([]any{at(1, 1), at(1, 2)})
			requireRank(t, "only", seen, 2)
			require.Equal(t, 2, f.decisions()[0].Decode.DPRank)
		}
		require.Positive(t, f.elsewhere("other"), "the list's next is another rank of the same pod")
		moved := f.elsewhere("other")
		require.NotEqual(t, at(1, 1), one(at(1, 1)).Headers.Get("Host"), "nobody of the list is of the pool: Envoy's fallback")
		require.InDelta(t, moved+1, f.elsewhere("other"), 0)
	})
}

// TestWhoServesInPlaceOfThePickedIsKnownByEitherWord: the protocol's metadata, which
// Envoy's override policy sends since 1.38, or the attribute upstream.address. Who
// is not of ours is counted, and nobody has his load.
func TestWhoServesInPlaceOfThePickedIsKnownByEitherWord(t *testing.T) {
	t.Parallel()
	cut := func(line string) func(string) string {
		return func(y string) string {
			var kept []string
			for s := range strings.SplitSeq(y, "\n") {
				if !strings.Contains(s, line) {
					kept = append(kept, s)
				}
			}
			return strings.Join(kept, "\n")
		}
	}
	ways := map[string]func(string) string{"both": nil, "neither": nil}
	ways["neither"] = func(y string) string { return cut("response_attributes:")(cut("selected_host_key:")(y)) }
	if saysServed() {
		ways["the attribute"], ways["the metadata"] = cut("selected_host_key:"), cut("response_attributes:")
	}
	for name, patch := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stranger := newBackend(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("a stranger's")) })
			l := layout{aggregated: 3, config: listed(1), gateway: &envoy.GatewayParams{SubsetHeader: subsetHeader}, patch: patch}
			l.beforeEnvoy = func(f *fleet) { f.gateway.Pool = []string{f.workers[0].Info.Endpoint.String(), stranger.addr} }
			both(t, l, func(t *testing.T, f *fleet) {
				q := ask("who is it", 2)[0]
				ours := 0
				const n = 4
				for i := range n { // one whom the pool has not is picked: its fallback goes round
					r := f.allowing(q, f.workers[1+i%2].Info.Endpoint.String(), "")
					if r.body != "a stranger's" {
						q.require(t, r)
						ours++
					}
				}
				require.Positive(t, ours)
				require.Less(t, ours, n)
				require.Len(t, f.gotAll(f.workers[:1]), ours)
				if name == "neither" {
					require.Zero(t, f.metric("baton_served_elsewhere_total"), "nobody has said anything")
					return
				}
				require.EqualValues(t, ours, f.elsewhere("other"))
				require.EqualValues(t, n-ours, f.elsewhere("unknown"))
			})
		})
	}
}
