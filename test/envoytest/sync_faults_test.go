//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// shortLease ends within a test: KV of which nobody can know is freed by its
// lease alone.
var shortLease = []string{"--kv-lease", "2s"}

// TestAFailedPrefillBeforeDecodeIsInvisibleToTheClient is
// docs/behaviour.md#first-prefill-fails: whatever way prefill fails, another prefill
// worker does it, and the client gets one answer.
func TestAFailedPrefillBeforeDecodeIsInvisibleToTheClient(t *testing.T) {
	t.Parallel()
	faults := []struct {
		name  string
		fault enginesim.Fault
	}{
		{"it answers 500", enginesim.Fault{Mode: enginesim.FaultError, Count: 1}},
		{"it answers 429", enginesim.Fault{Mode: enginesim.FaultError, Status: 429, Count: 1}},
		{"it aborts with a 200", enginesim.Fault{Mode: enginesim.FaultFinishAbort, When: enginesim.Mid, Count: 1}},
		{"its answer breaks off", enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Mid, Count: 1}},
		{"its hand-off is missing", enginesim.Fault{Mode: enginesim.FaultNoHandoff, Count: 1}},
		{"its hand-off is a text", enginesim.Fault{Mode: enginesim.FaultBadHandoff, Form: enginesim.FormText, Count: 1}},
		{"its hand-off is a list", enginesim.Fault{Mode: enginesim.FaultBadHandoff, Form: enginesim.FormList, Count: 1}},
		{"its hand-off comes twice", enginesim.Fault{Mode: enginesim.FaultBadHandoff, Form: enginesim.FormTwice, Count: 1}},
		{"its hand-off is no JSON", enginesim.Fault{Mode: enginesim.FaultBadHandoff, Form: enginesim.FormBroken, Count: 1}},
		{"it hangs at once", enginesim.Fault{Mode: enginesim.FaultHang, Count: 1}},
		{"it hangs in the middle", enginesim.Fault{Mode: enginesim.FaultHang, When: enginesim.Mid, Count: 1}},
		{"it is slow past its due", enginesim.Fault{Mode: enginesim.FaultSlow, Factor: 1000, Count: 1}},
		{"its port is closed", enginesim.Fault{Mode: enginesim.FaultRefuse, ForMS: 4000}},
		{"the process dies while it computes", enginesim.Fault{Mode: enginesim.FaultDie, When: enginesim.Mid}},
	}
	l := layout{prefill: 2, decode: 2, config: quickFaults, prefillArgs: append([]string{"--prefill-base-us", "10000"}, shortLease...)}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		for _, c := range faults {
			f.awaitHealthy()
			retried := f.metric("baton_fresh_picks_total")
			f.fault(f.prefill[0], c.fault)
			for i := range 2 { // in turn: the faulty worker is met
				q := ask(fmt.Sprintf("%s, request %d of two", c.name, i), 8)[(i+len(c.name))%4]
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				r := f.send(ctx, q.path, q.body)
				cancel()
				q.require(t, r)
			}
			require.Equal(t, retried+1, f.metric("baton_fresh_picks_total"), "%s: the fault was met", c.name)
		}
		for _, d := range f.gotAll(f.decode) {
			require.Equal(t, "decode", d.Leg, "no decode worker was asked to do without a hand-off")
		}
	})
}

// TestWhenNoPrefillWorkerCanTheClientGetsOneError is the end of
// docs/behaviour.md#first-prefill-fails: within the deadline, and never a decode
// without its parameters.
func TestWhenNoPrefillWorkerCanTheClientGetsOneError(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 2, decode: 1, config: spareErrors, prefillArgs: shortLease}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		for name, x := range map[string]enginesim.Fault{
			"500":               {Mode: enginesim.FaultError},
			"no hand-off":       {Mode: enginesim.FaultNoHandoff},
			"malformed":         {Mode: enginesim.FaultBadHandoff, Form: enginesim.FormBroken},
			"breaks off":        {Mode: enginesim.FaultTruncate},
			"aborts with a 200": {Mode: enginesim.FaultFinishAbort},
		} {
			picks := f.metric("baton_fresh_picks_total")
			f.faultAll(f.prefill, x)
			q := ask("nobody can: "+name, 8)[int(picks)%4]
			r := f.send(t.Context(), q.path, q.body)
			requireError(t, r, http.StatusServiceUnavailable, "prefill_failed")
			require.Equal(t, "1", r.header.Get("Retry-After"))
			require.Equal(t, picks+2, f.metric("baton_fresh_picks_total"), name)
			f.faultAll(f.prefill, enginesim.Fault{})
			f.awaitHealthy()
		}
		for _, d := range f.gotAll(f.decode) {
			require.Equal(t, "decode", d.Leg)
		}
	})
}

// TestThePrefillWorkersRefusalIsTheAnswer: a 4xx that a mate gives, too, is the
// request's. Mates are asked while nothing is known of the pool, and rarely later. A
// redirect is the client's at once.
func TestThePrefillWorkersRefusalIsTheAnswer(t *testing.T) {
	t.Parallel()
	eachSync(t, layout{prefill: 2, decode: 1}, func(t *testing.T, f *fleet, _ worker.Engine) {
		f.faultAll(f.prefill, enginesim.Fault{Mode: enginesim.FaultError, Status: http.StatusUnprocessableEntity})
		for _, q := range ask("not like this", 8) {
			r := f.send(t.Context(), q.path, q.body)
			require.NoError(t, r.err)
			require.Equal(t, http.StatusUnprocessableEntity, r.status, r.body)
			require.Contains(t, r.body, "injected error", "the worker's own words")
			require.Equal(t, "application/json", r.header.Get("Content-Type"))
		}
		f.faultAll(f.prefill, enginesim.Fault{Mode: enginesim.FaultError, Status: http.StatusPermanentRedirect})
		r := f.send(t.Context(), "/v1/completions", completion("not here", 8, false))
		require.Equal(t, http.StatusPermanentRedirect, r.status, r.body)
		require.Equal(t, "/elsewhere", r.header.Get("Location"))
		require.LessOrEqual(t, f.metric("baton_fresh_picks_total"), 2.0)
		require.Zero(t, f.setAside())
		require.Empty(t, f.gotAll(f.decode))
	})
}

// TestADecodeThatCanDoWithoutGetsTheRequestAsItCame is the one case of
// docs/behaviour.md#prefill-answers in which a request that was to be split is not: it
// is counted.
func TestADecodeThatCanDoWithoutGetsTheRequestAsItCame(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 1, decodeArgs: []string{"--accepts-aggregated"}}
	both(t, layoutOf(l, worker.VLLM), func(t *testing.T, f *fleet) {
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultNoHandoff})
		for _, q := range ask("without", 5) {
			f.forget()
			q.require(t, f.send(t.Context(), q.path, q.body))
			_, decode := f.legs()
			require.Equal(t, q.body, decode.Body)
		}
		require.EqualValues(t, 4, f.metric("baton_prefill_legs_total", `reason="no_handoff"`))
		require.Zero(t, f.metric("baton_fresh_picks_total"))
		// A malformed one is held somewhere: that is a failure, not a request to do without.
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultError})
		f.forget()
		requireError(t, f.send(t.Context(), "/v1/completions", completion("not without", 2, false)), http.StatusServiceUnavailable, "prefill_failed")
		require.Empty(t, f.gotAll(f.decode))
	})
}

func layoutOf(l layout, e worker.Engine) layout {
	l.simArgs = append([]string{"--engine", string(e)}, l.simArgs...)
	return l
}

// TestAPrefillWorkerThatLeavesWhileItComputesHasFailed: the request goes on with
// another, at once.
func TestAPrefillWorkerThatLeavesWhileItComputesHasFailed(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 2, decode: 1, config: modes("round-robin", "round-robin")}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		f.faultAll(f.prefill, enginesim.Fault{Mode: enginesim.FaultHang, Count: 1})
		q := ask("its worker leaves", 4)[3]
		done := make(chan *reply, 1)
		go func() { done <- f.send(t.Context(), q.path, q.body) }()
		f.await("prefill to be asked", func() bool { return f.received(f.prefill[0])+f.received(f.prefill[1]) == 1 })
		leaver, stays := 0, 1
		if f.received(f.prefill[0]) == 0 {
			leaver, stays = 1, 0
		}
		f.fault(f.prefill[stays], enginesim.Fault{})
		f.publish(append(f.decode, f.prefill[stays])...)
		q.require(t, <-done)
		require.EqualValues(t, 1, f.metric("baton_fresh_picks_total"))
		f.await("its prefill to be ended", func() bool { s, ok := f.state(f.prefill[leaver]); return ok && s.Running == 0 })
	})
}

// TestAFailedDecodeAfterAGoodHandOffIsInvisible: another pair serves the
// request, and what the first prefill holds is taken.
func TestAFailedDecodeAfterAGoodHandOffIsInvisible(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 2, decode: 2, config: quickFaults}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		for i, x := range []enginesim.Fault{
			{Mode: enginesim.FaultError, When: enginesim.After, Count: 1},
			{Mode: enginesim.FaultError, Status: 503, When: enginesim.After, Count: 1},
			{Mode: enginesim.FaultRefuse, ForMS: 4000},
			{Mode: enginesim.FaultDie, When: enginesim.After},
		} {
			f.await("decode to be healthy", func() bool {
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("in between", 2, false)), "in between", 2)
				return f.metric("baton_workers", `role="decode"`, `state="healthy"`) == 2
			})
			f.awaitNoSuspect()
			picks, collected := f.metric("baton_fresh_picks_total"), f.metric("baton_prefill_legs_total", `outcome="collected"`)
			f.fault(f.decode[0], x)
			for j := range 2 {
				q := ask(fmt.Sprintf("decode fails %d %d", i, j), 6)[(i+j)%4]
				q.require(t, f.send(t.Context(), q.path, q.body))
			}
			fresh := f.metric("baton_fresh_picks_total") - picks
			f.awaitCollected()
			count := func() float64 { return f.metric("baton_prefill_legs_total", `outcome="collected"`) - collected }
			if x.Mode == enginesim.FaultDie {
				// An answer that broke off makes its worker suspect. Until a probe has found nobody
				// there, another request may be sent to it, whose hand-off nobody has seen; one that
				// waits for its prefill meanwhile gets another decode worker, and loses none. One
				// that dies may do so before it has told that it has taken the KV.
				require.Contains(t, []float64{1, 2}, fresh)
				require.LessOrEqual(t, count(), fresh)
				continue
			}
			require.Equal(t, 1.0, fresh, "%+v", x)
			want := 0.0
			if x.Mode == enginesim.FaultRefuse { // nobody has seen the hand-off
				want = 1
			}
			f.await("the count of collected hand-offs", func() bool { return count() == want })
		}
	})
}

// TestADecodeThatHangsIsCutAtTheDeadline: it may stream at any time, so nobody
// else can know; what it has seen it frees.
func TestADecodeThatHangsIsCutAtTheDeadline(t *testing.T) {
	t.Parallel()
	eachSync(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet, _ worker.Engine) {
		f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultHang, When: enginesim.After, Count: 1})
		r := f.send(t.Context(), "/v1/completions", completion("decode hangs", 6, true), "x-request-timeout-ms", "1500")
		requireError(t, r, http.StatusGatewayTimeout, "deadline_exceeded")
		f.awaitCollected()
		require.Zero(t, f.metric("baton_prefill_legs_total", `outcome="collected"`))
	})
}

// TestADecodeThatLeavesWhilePrefillRunsIsReplaced: the hand-off is good for any
// decode worker, so there is no second prefill.
func TestADecodeThatLeavesWhilePrefillRunsIsReplaced(t *testing.T) {
	t.Parallel()
	l := layout{
		prefill: 1, decode: 2, prefillArgs: []string{"--prefill-base-us", "800000"},
		config: modes("round-robin", "round-robin") + "prefill: {overdue_base: 30s}\n",
	}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		for i := range 2 { // in turn: one of the two is met by the one that leaves
			q := ask(fmt.Sprintf("decode leaves %d", i), 4)[i]
			done := make(chan *reply, 1)
			f.await("nothing to be booked", func() bool {
				return f.metric("baton_worker_prefill_requests")+f.metric("baton_worker_decode_requests") == 0
			})
			go func() { done <- f.send(t.Context(), q.path, q.body) }()
			f.await("prefill to run", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 1 })
			booked := 0
			if f.metric("baton_worker_decode_requests", fmt.Sprintf("worker_id=\"%s\"", f.decode[1].Info.ID)) == 1 {
				booked = 1
			}
			require.NoError(t, f.prefill[0].Signal(syscall.SIGSTOP)) // it ends when the plugin has seen the change
			f.publishAndWait(f.prefill[0], f.decode[1-booked])
			require.NoError(t, f.prefill[0].Signal(syscall.SIGCONT))
			q.require(t, <-done)
			require.EqualValues(t, i+1, f.received(f.prefill[0]), "prefill was asked once")
			require.Empty(t, f.got(f.decode[booked]))
			f.publish(f.workers...)
			f.await("both to be known again", func() bool { return f.metric("baton_workers", `role="decode"`, `state="healthy"`) == 2 })
			for _, w := range f.decode {
				require.NoError(t, w.Sim.Reset(f.ctx))
			}
		}
		require.EqualValues(t, 2, f.metric("baton_fresh_picks_total", `reason="decode_left"`))
	})
}
