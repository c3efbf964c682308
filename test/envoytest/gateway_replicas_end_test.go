//go:build e2e

package envoytest

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// spread has a gateway's filter go to more plugins, in turn: at these ports.
func spread(t *testing.T, ports ...int) func(string) string {
	const cluster = "/static_resources/clusters/0"
	const endpoints = cluster + "/load_assignment/endpoints/0/lb_endpoints"
	ops := []operation{{"test", "", cluster + "/name", "extproc"}}
	for _, port := range ports {
		ops = append(ops,
			operation{"copy", endpoints + "/0", endpoints + "/1", nil},
			operation{"replace", "", endpoints + "/1/endpoint/address/socket_address/port_value", port})
	}
	return patchedWith(t, ops)
}

// eachSpread runs a test with two plugins that a gateway's streams go to in turn, in
// both body modes. Envoy also knows plugins at the ports more.
func eachSpread(t *testing.T, l layout, prefill string, test func(t *testing.T, a, b *replica), more ...int) {
	t.Helper()
	bodyModes(t, l, func(t *testing.T, l layout) {
		a, b := newReplicas(t, l, prefill, func(port int, _ string) func(string) string { return spread(t, append(more, port)...) })
		test(t, a, b)
	})
}

// TestEitherReplicaHearsWhoServed: the one that has picked is told who has answered
// in place of a dead worker, and what is booked moves there, in its own book.
func TestEitherReplicaHearsWhoServed(t *testing.T) {
	t.Parallel()
	l := layout{
		decode: 3, decodeArgs: []string{"--accepts-aggregated", "--decode-us-per-token", "20000"},
		config: "gateway: {enabled: true, endpoints: 3}\n" + takeTurns,
	}
	eachSpread(t, l, "overdue_base: 30s", func(t *testing.T, a, b *replica) {
		dead := a.decode[0]
		require.NoError(t, dead.Kill())
		var running []*leaver
		for range 6 { // in turn, and so are the workers at each
			c := a.begin(ask("who serves", 500)[2])
			running = append(running, c)
			a.await("it to be served", func() bool { return a.running(a.decode[1:]) == len(running) })
		}
		at := func(r *replica, w *stack.Worker) float64 {
			return r.metric("baton_worker_decode_requests", fmt.Sprintf("worker_id=%q", w.Info.ID))
		}
		for _, r := range []*replica{a, b} {
			r.await("the word of who served", func() bool { return r.metric("baton_served_elsewhere_total", `where="other"`) == 1 })
			require.Zero(t, at(r, dead), "nothing is booked on who has not served")
			require.EqualValues(t, 3, at(r, r.decode[1])+at(r, r.decode[2]))
		}
		for _, c := range running {
			a.leaves(c)
		}
	})
}

// TestOneOfTwoReplicasIsKilled: what clients see of it, as ARCHITECTURE.md says. It
// serves the other legs of the owner's requests; then the owner is the one.
func TestOneOfTwoReplicasIsKilled(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 1, decodeArgs: []string{"--decode-us-per-token", "10000"}}
	eachReplica(t, l, "overdue_base: 2500ms, overdue_per_token: 0s, orphan_grace: 300ms", func(t *testing.T, owner, other *replica) {
		if owner.bearer == "Bearer b" {
			return // each is killed already
		}
		f := owner.fleet
		slow := func() {
			f.forget()
			f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultSlow, Factor: 1, DelayMS: 1000, Count: 1})
		}
		both := func() bool { return f.running(f.prefill) == 1 && f.running(f.decode) == 1 }
		q := ask("one of two is killed", 60)[2]

		// Whose answer has begun needs the other no more.
		answering := owner.begun(q)
		// In this order: what decode runs was booked before, so that no booking of prefill
		// means that its owner has heard of the leg's end.
		f.await("the answer to have begun", func() bool {
			return f.running(f.decode) == 1 && owner.metric("baton_worker_prefill_requests") == 0
		})
		require.NoError(t, other.plugin.Kill())
		q.require(t, <-answering.reply)

		// Nobody else takes the leg here: it never starts, and the last attempt waits for it.
		requireError(t, owner.asked(q, "x-request-timeout-ms", "4000"), http.StatusGatewayTimeout, "deadline_exceeded")
		other.back(q)

		// The end of the leg is not heard of, and nobody is to blame for that: a fresh attempt
		// is made, whose leg nobody takes either while the other is away.
		slow()
		waiting := owner.begun(q, "x-request-timeout-ms", "12000")
		f.await("both legs to run", both)
		owner.awaitHeard()
		picks := owner.metric("baton_fresh_picks_total")
		require.NoError(t, other.plugin.Kill())
		f.await("a fresh attempt", func() bool { return owner.metric("baton_fresh_picks_total") > picks })
		f.leaves(waiting)
		other.back(q)
		owner.awaitNothingBooked()
		require.Zero(t, owner.setAside(), "nobody is to blame")
		require.Positive(t, owner.saw(blame.Mirrored, blame.CarrierLost))

		// The owner dies: buffered, the pair goes on by itself; in full duplex prefill
		// waits for its half until the request's deadline and a grace have passed.
		slow()
		deadline := map[bool]string{true: "3000", false: "20000"}[f.fullDuplex] // where nobody waits for it, it is only to be long enough
		left := owner.begun(q, "x-request-timeout-ms", deadline)
		f.await("both legs to run", both)
		require.NoError(t, owner.plugin.Kill())
		if f.fullDuplex {
			requireUnavailable(t, <-left.reply)
		} else {
			q.require(t, <-left.reply)
		}
		requireUnavailable(t, owner.asked(q))
		f.settled()
		other.checkIdle()
		owner.back(q)
	})
}

// TestOfTwoReplicasTheSurvivorServes: what the dead one carried is unknown, and nobody's
// fault. Its bookings end within ten seconds, and while it is away all is served.
func TestOfTwoReplicasTheSurvivorServes(t *testing.T) {
	t.Parallel()
	l := layoutOf(layout{prefill: 1, decode: 1, twoLegs: true}, worker.SGLang)
	eachSpread(t, l, "overdue_base: 30s, overdue_per_token: 0s, orphan_grace: 300ms", func(t *testing.T, a, b *replica) {
		f := a.fleet
		q := ask("one of two dies", 6)[2]
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultHang})
		running := f.begin(q)
		f.await("its prefill to run", func() bool { return f.running(f.prefill) == 1 })
		owner, carrier := a, b
		if b.metric("baton_worker_prefill_requests") > 0 {
			owner, carrier = b, a
		}
		require.Positive(t, carrier.started(), "in turn: its legs have come to both")
		owner.awaitHeard()
		f.fault(f.prefill[0], enginesim.Fault{})
		require.NoError(t, carrier.plugin.Kill())
		owner.await("the owner to know that nobody knows", func() bool { return owner.saw(blame.Mirrored, blame.CarrierLost) > 0 })
		q.require(t, <-running.reply)
		owner.awaitNothingBooked()
		requireBlameless(owner.fleet)
		for _, q := range ask("the survivor serves", 6) {
			q.require(t, owner.send(t.Context(), q.path, q.body))
		}
		carrier.again()
	})
}

// TestOneOfTwoReplicasIsKilledUnderALegOfTheOthers: a replica admits such a leg and
// has no part in it any more.
func TestOneOfTwoReplicasIsKilledUnderALegOfTheOthers(t *testing.T) {
	t.Parallel()
	l := layoutOf(layout{prefill: 1, decode: 1, prefillArgs: shortLease}, worker.VLLM)
	eachReplica(t, l, "overdue_base: 30s", func(t *testing.T, owner, other *replica) {
		f := owner.fleet
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultSlow, Factor: 1, DelayMS: 1000, Count: 1})
		q := ask("one of two is killed", 6)[2]
		c := owner.begun(q)
		f.await("prefill to run", func() bool { return f.running(f.prefill) == 1 })
		owner.awaitHeard()
		require.NoError(t, other.plugin.Kill())
		q.require(t, <-c.reply)
		requireError(t, owner.asked(q), http.StatusServiceUnavailable, "prefill_failed")
		require.Zero(t, owner.metric("baton_aside_transitions_total", `to="aside"`), "no worker's fault")
		other.back(q)
	})
}

// back starts the replica again, and waits until legs of the other's requests and
// requests of its own are served.
func (r *replica) back(q question) {
	r.t.Helper()
	r.again()
	for _, bearer := range []string{"Bearer a", "Bearer b"} {
		r.await("it to serve again", func() bool {
			return r.send(r.t.Context(), q.path, q.body, "Authorization", bearer).status == http.StatusOK
		})
	}
	r.settled()
}
