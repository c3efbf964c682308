//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// quickFaults finds a hung worker, an orphan and one that is well again sooner than
// the defaults do, and takes workers in turn, so that the faulty one is met.
// spareErrors is the same, and server errors set nobody aside.
const (
	quickTurns = `
routing: {debug_header: true, prefill: {mode: round-robin}, decode: {mode: round-robin}}
prefill: {overdue_base: 1500ms, overdue_per_token: 0s, orphan_grace: 1s}
`
	quickFaults = quickTurns + "health: {probe_interval: 100ms}\n"
	spareErrors = quickTurns + "health: {probe_interval: 100ms, server_errors: 100}\n"
)

func (f *fleet) fault(w *stack.Worker, x enginesim.Fault) {
	f.t.Helper()
	require.NoError(f.t, w.Sim.SetFault(f.ctx, x))
}

// hold has a worker stop with its next request, at the moment, until goOn is called.
func (f *fleet) hold(w *stack.Worker, when enginesim.Moment) (goOn func()) {
	f.t.Helper()
	f.fault(w, enginesim.Fault{Mode: enginesim.FaultHold, When: when, Count: 1})
	return func() { f.fault(w, enginesim.Fault{}) }
}

func (f *fleet) received(w *stack.Worker) uint64 {
	s, ok := f.state(w)
	require.True(f.t, ok, "%s answers", w.Name)
	return s.Requests
}

// TestAFailedPrefillIsInvisibleToTheClient is docs/behaviour.md#fresh-attempt: whatever
// way a prefill worker fails, the client gets its whole answer from a fresh pair, and
// no KV is held anywhere at the end.
func TestAFailedPrefillIsInvisibleToTheClient(t *testing.T) {
	t.Parallel()
	faults := map[string]enginesim.Fault{
		"the process dies in mid-prefill":    {Mode: enginesim.FaultDie, When: enginesim.Mid},
		"it hangs before it enters the room": {Mode: enginesim.FaultHang, Count: 1},
		"it hangs in the room":               {Mode: enginesim.FaultHang, When: enginesim.Mid, Count: 1},
		"it answers 500":                     {Mode: enginesim.FaultError, Count: 1},
		"it answers 429":                     {Mode: enginesim.FaultError, Status: 429, Count: 1},
		"it aborts with a 200":               {Mode: enginesim.FaultFinishAbort, When: enginesim.Mid, Count: 1},
		"its 200 tells of another prompt":    {Mode: enginesim.FaultAborted, Count: 1},
		"its answer breaks off":              {Mode: enginesim.FaultTruncate, When: enginesim.Mid, Count: 1},
		"its port is closed":                 {Mode: enginesim.FaultRefuse, ForMS: 4000},
	}
	for _, early := range []bool{false, true} {
		both(t, layout{prefill: 2, decode: 2, config: quickFaults, prefillArgs: []string{"--prefill-base-us", "20000"}}, func(t *testing.T, f *fleet) {
			names := []string{
				"it answers 500", "it answers 429", "it aborts with a 200", "it hangs in the room", "its answer breaks off",
				"it hangs before it enters the room", "its 200 tells of another prompt", "its port is closed", "the process dies in mid-prefill",
			}
			if early { // an engine that answers 200 before it has its KV
				for _, w := range f.decode {
					f.fault(w, enginesim.Fault{Mode: enginesim.FaultEarly200})
				}
				names = []string{"it hangs in the room", "its 200 tells of another prompt", "it answers 500", "the process dies in mid-prefill"}
			}
			for _, name := range names {
				f.awaitHealthy()
				retried := f.metric("baton_fresh_picks_total")
				f.fault(f.prefill[0], faults[name])
				for i := range 3 { // in turn: the faulty worker is met
					prompt := fmt.Sprintf("%s, request %d of three", name, i)
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					r := f.send(ctx, "/v1/completions", completion(prompt, 8, i%2 == 0))
					cancel()
					requireAnswer(t, r, prompt, 8)
					t.Logf("%s: %s", name, r.took.Round(time.Millisecond))
				}
				require.Greater(t, f.metric("baton_fresh_picks_total"), retried, "%s: the fault was met", name)
			}
		})
	}
}

// TestACountThatTwoWorkersTellAlikeIsBelieved: two prefill workers count another token in a
// prompt of ids than there is. The first request takes two attempts, and nobody is charged.
// From then on the model's tokens count as estimated.
func TestACountThatTwoWorkersTellAlikeIsBelieved(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 1, config: quickFaults}, func(t *testing.T, f *fleet) {
		for _, w := range f.prefill {
			f.fault(w, enginesim.Fault{Mode: enginesim.FaultMiscount})
		}
		for i := range 3 {
			r := f.send(t.Context(), "/v1/completions", fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":4}`, idsJSON(64)))
			require.Equal(t, http.StatusOK, r.status, r.body)
			require.EqualValues(t, 1, f.metric("baton_fresh_picks_total"), "request %d", i)
		}
		for proof, n := range map[string]float64{"miscounted": 1, "believed": 1, "proven": 2} {
			require.InDelta(t, n, f.metric("baton_prefill_proofs_total", fmt.Sprintf(`reason=%q`, proof)), 0, proof)
		}
		require.Zero(t, f.metric("baton_worker_charges_total", `charge="server_error"`))
		require.Equal(t, 1, strings.Count(f.plugin.Log(), "two prefill workers count the tokens of a prompt alike"))
	})
}

// awaitHealthy sends requests until every prefill worker is healthy: one that
// was set aside has to answer one after a probe. What came of all that were sent is
// known then: Envoy's access log, which comes later, may charge a worker. And no worker
// is suspected: else a probe may meet the next fault before a request does.
func (f *fleet) awaitHealthy() {
	f.t.Helper()
	f.await("all requests to be counted", func() bool { return f.metric("baton_requests_total") == float64(f.sent.Load()) })
	f.awaitNoSuspect()
	f.await("the prefill workers to be healthy", func() bool {
		if f.metric("baton_workers", `role="prefill"`, `state="healthy"`) == float64(len(f.prefill)) {
			return true
		}
		requireAnswer(f.t, f.send(f.t.Context(), "/v1/completions", completion("in between", 1, false)), "in between", 1)
		return false
	})
}

func (f *fleet) awaitNoSuspect() {
	f.t.Helper()
	f.await("no worker to be suspected or doubted", func() bool {
		s := f.adminGet("/debug/state")
		return !strings.Contains(s, "suspected: it is probed") && !strings.Contains(s, "doubted: ")
	})
}

// TestALegThatNeverStartsGetsAFreshPick: a mirror over its cluster's limit is
// dropped without a word (docs/behaviour.md#not-started).
func TestALegThatNeverStartsGetsAFreshPick(t *testing.T) {
	t.Parallel()
	oneLeg := func(y string) string {
		at := strings.Index(y, "  - name: prefill_leg\n    type: STATIC")
		return y[:at] + strings.Replace(y[at:], "circuit_breakers: *limits", "circuit_breakers: {thresholds: [{max_requests: 1}]}", 1)
	}
	// The second comes while the first keeps the leg, and again once it is free.
	both(t, layout{prefill: 1, decode: 1, envoy: mirrors, patch: oneLeg, config: "prefill: {start_timeout: 3s, overdue_base: 30s}\n"}, func(t *testing.T, f *fleet) {
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultSlow, Factor: 1, DelayMS: 1000, Count: 1})
		first := make(chan *reply, 1)
		go func() {
			first <- f.send(t.Context(), "/v1/completions", completion("the first keeps the only leg busy", 4, false))
		}()
		f.await("the first leg to be at its worker", func() bool { return f.received(f.prefill[0]) > 0 })
		r := f.send(t.Context(), "/v1/completions", completion("the second has no leg at first", 4, false))
		requireAnswer(t, r, "the second has no leg at first", 4)
		requireAnswer(t, <-first, "the first keeps the only leg busy", 4)
		require.EqualValues(t, 1, f.metric("baton_fresh_picks_total"))
		f.awaitSaw(blame.Mirrored, blame.NotStarted)
		require.EqualValues(t, 1, f.saw(blame.Mirrored, blame.NotStarted))
		require.Zero(t, f.setAside())
	})
}

// TestOneOfTwoPrefillWorkersDead is docs/behaviour.md#aside-at-once, four requests a
// second.
func TestOneOfTwoPrefillWorkersDead(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"killed", "stopped"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			both(t, layout{prefill: 2, decode: 2, config: "routing: {prefill: {mode: round-robin}}\nprefill: {overdue_base: 1s}\n"}, func(t *testing.T, f *fleet) {
				bad := f.prefill[0]
				r := f.send(t.Context(), "/v1/completions", completion("all is well", 4, false))
				requireAnswer(t, r, "all is well", 4)
				if how == "killed" {
					require.NoError(t, bad.Kill())
				} else {
					require.NoError(t, bad.Signal(syscall.SIGSTOP))
					defer func() { require.NoError(t, bad.Signal(syscall.SIGCONT)) }()
				}
				f.drill(bad)
			})
		})
	}
}

// drill sends requests, four a second, until the worker has been aside for four of
// them. None may fail. Once the worker is aside none may be sent to it: it is not
// picked, so nothing is retried.
func (f *fleet) drill(bad *stack.Worker) {
	f.t.Helper()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var wg sync.WaitGroup
	var replies []*reply
	const most = 80 // a busy machine notices late
	asideAt, retriesThen := -1, 0.0
	for i := 0; i < most && (asideAt < 0 || i < asideAt+4); i++ {
		r := new(reply)
		replies = append(replies, r)
		wg.Go(func() {
			*r = *f.send(f.t.Context(), "/v1/completions", completion(fmt.Sprintf("drill %d", i), 4, false))
		})
		<-tick.C
		if asideAt < 0 && f.metric("baton_workers", `role="prefill"`, `state="aside"`) == 1 {
			asideAt, retriesThen = i, f.metric("baton_fresh_picks_total")
		}
	}
	wg.Wait()
	for i, r := range replies {
		requireAnswer(f.t, r, fmt.Sprintf("drill %d", i), 4)
		f.t.Logf("request %d: %s", i, r.took.Round(time.Millisecond))
	}
	require.GreaterOrEqual(f.t, asideAt, 0, "%s was set aside", bad.Name)
	late := f.metric("baton_fresh_picks_total") - retriesThen
	require.LessOrEqual(f.t, late, float64(asideAt+1), "only what was in flight is retried")
}

// TestAnUnreachableDecodeGetsAFreshPick is docs/behaviour.md#decode-unreachable.
func TestAnUnreachableDecodeGetsAFreshPick(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 2, config: quickFaults}, func(t *testing.T, f *fleet) {
		require.NoError(t, f.decode[0].Kill())
		for i := range 4 {
			prompt := fmt.Sprintf("decode is gone, request %d", i)
			r := f.send(t.Context(), "/v1/completions", completion(prompt, 6, true))
			requireAnswer(t, r, prompt, 6)
			t.Log(r.took.Round(time.Millisecond))
		}
		require.EqualValues(t, 1, f.metric("baton_fresh_picks_total"), "met once, then set aside")
	})
	both(t, layout{prefill: 2, decode: 2, config: quickFaults}, func(t *testing.T, f *fleet) {
		f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultError, Status: 500, Count: 1})
		f.fault(f.decode[1], enginesim.Fault{Mode: enginesim.FaultDie, When: enginesim.After})
		for i := range 3 {
			prompt := fmt.Sprintf("decode fails before a byte, request %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 6, true)), prompt, 6)
		}
		require.EqualValues(t, 2, f.metric("baton_fresh_picks_total"))
	})
}

// TestARequestThatEndsItsDecodesGetsNoThird: of six decode workers each of two such requests
// ends two, one before its answer's head and one after it, where Envoy itself begins the fresh
// attempts. Requests of others are served.
func TestARequestThatEndsItsDecodesGetsNoThird(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 6, config: quickFaults}, func(t *testing.T, f *fleet) {
		dead := func() (n int) {
			for _, w := range f.decode {
				select {
				case <-w.Done():
					n++
				default:
				}
			}
			return n
		}
		for i, when := range []enginesim.Moment{enginesim.Before, enginesim.Begun} {
			const killer = "ends who serves it"
			for _, w := range f.decode {
				select {
				case <-w.Done():
				default:
					f.fault(w, enginesim.Fault{Mode: enginesim.FaultDie, When: when, Only: killer})
				}
			}
			r := f.send(t.Context(), "/v1/completions", completion(killer, 4, when == enginesim.Begun))
			requireError(t, r, http.StatusInternalServerError, "decodes_lost")
			require.Empty(t, r.header.Get("Retry-After"))
			require.Equal(t, "false", r.header.Get("X-Should-Retry"), "clients' libraries obey it")
			require.EqualValues(t, i+1, f.metric("baton_failures_total", `code="decodes_lost"`))
			for j := range 4 {
				prompt := fmt.Sprintf("somebody else's, %d", j)
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, j%2 == 0)), prompt, 4)
			}
			f.await("the two to have ended", func() bool { return dead() >= 2*(i+1) })
			require.Equal(t, 2*(i+1), dead(), when)
		}
	})
}

// TestWhatHasEndedTwoWorkersIsHeldBack: after two workers were lost under a request with a member that
// is in no list, no other one with that member comes to a worker. Those without it are served.
func TestWhatHasEndedTwoWorkersIsHeldBack(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]layout{
		"alone": {aggregated: 4, config: quickFaults},
		"apart": {prefill: 1, decode: 4, config: quickFaults + "request: {handed_over: [spell, charm]}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, l, func(t *testing.T, f *fleet) {
				const killer = "ends who serves it"
				with := func(member, prompt string) string {
					return strings.Replace(completion(prompt, 4, false), "{", `{"`+member+`":1,`, 1)
				}
				answering := f.workers[l.prefill:]
				for _, w := range answering {
					f.fault(w, enginesim.Fault{Mode: enginesim.FaultDie, When: enginesim.Before, Only: killer})
				}
				requireAnswer(t, f.send(t.Context(), "/v1/completions", with("spell", "the first")), "the first", 4)
				requireError(t, f.send(t.Context(), "/v1/completions", with("spell", killer)), http.StatusInternalServerError, "decodes_lost")
				r := f.send(t.Context(), "/v1/completions", with("spell", killer))
				requireError(t, r, http.StatusInternalServerError, "held_back")
				require.Contains(t, r.body, "with members that are in no list of what their engine takes: the members spell. Such requests are held back until ")
				require.Equal(t, "false", r.header.Get("X-Should-Retry"))
				require.EqualValues(t, 1, f.metric("baton_failures_total", `code="held_back"`))
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("without", 4, false)), "without", 4)
				requireAnswer(t, f.send(t.Context(), "/v1/completions", with("charm", "another")), "another", 4)
				require.Contains(t, strings.Join(f.trouble(), "\n"), "HELD: Two workers were lost under a request for model m with the members spell, ")
				dead := 0
				for _, w := range answering {
					if !alive(w) {
						dead++
					}
				}
				require.Equal(t, 2, dead)
			})
		})
	}
}

// TestWhenEveryAttemptFailsTheClientGetsOneError: a real status, never a 200
// with an error inside (docs/behaviour.md#real-status).
func TestWhenEveryAttemptFailsTheClientGetsOneError(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, config: quickFaults}, func(t *testing.T, f *fleet) {
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultError, Status: 503})
		r := f.send(t.Context(), "/v1/completions", completion("nobody can", 4, true))
		require.Equal(t, http.StatusServiceUnavailable, r.status)
		require.Contains(t, r.body, `"code":"prefill_failed"`)
		require.Empty(t, r.header.Get("x-baton-retry"), "ours alone")
		require.EqualValues(t, 2, f.metric("baton_fresh_picks_total"))
		require.EqualValues(t, 1, f.metric("baton_failures_total", `code="prefill_failed"`))
		// The engine's own refusal of a request is passed on, without a retry.
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultError, Status: 400})
		r = f.send(t.Context(), "/v1/completions", completion("a bad request", 4, true))
		require.Equal(t, http.StatusBadRequest, r.status)
		require.EqualValues(t, 2, f.metric("baton_fresh_picks_total"))
	})
}

// TestAClientThatLeavesCancelsDecodeAndNotPrefill is docs/behaviour.md#client-leaves
// for engines that meet.
func TestAClientThatLeavesCancelsDecodeAndNotPrefill(t *testing.T) {
	t.Parallel()
	both(t, layout{
		prefill: 1, decode: 1, config: "prefill: {overdue_base: 30s, orphan_grace: 3s}\n",
		decodeArgs: []string{"--decode-us-per-token", "20000"}, prefillArgs: []string{"--prefill-base-us", "300000"},
	}, func(t *testing.T, f *fleet) {
		// In the middle of the answer: prefill has long ended.
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan *reply, 1)
		go func() { done <- f.send(ctx, "/v1/completions", completion("leaves in the middle", 400, true)) }()
		f.await("decode to stream", func() bool {
			s, _ := f.state(f.decode[0])
			p, _ := f.state(f.prefill[0])
			return s.Running == 1 && p.OK == 1
		})
		cancel()
		require.Error(t, (<-done).err)
		f.await("decode to be cancelled", func() bool { s, _ := f.state(f.decode[0]); return s.Canceled == 1 })
		// While prefill runs: it is not cancelled, but nobody fetches its KV. The
		// orphan is ended after its grace and nothing is held.
		ctx, cancel = context.WithCancel(t.Context())
		go func() { done <- f.send(ctx, "/v1/completions", completion("leaves during prefill", 400, true)) }()
		f.await("prefill to run", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 1 })
		cancel()
		require.Error(t, (<-done).err)
		f.await("decode to be cancelled", func() bool { s, _ := f.state(f.decode[0]); return s.Canceled == 2 })
		s, _ := f.state(f.prefill[0])
		require.Equal(t, 1, s.Running, "prefill runs on")
		f.await("the orphan to be ended", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 0 && s.KVHeldBlocks == 0 })
	})
}

// TestAPrefillWorkerThatLeavesDiscoveryHasFailed: its requests do not wait for
// it to be overdue, and its load goes with it (docs/behaviour.md#leaves-nothing).
func TestAPrefillWorkerThatLeavesDiscoveryHasFailed(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, config: "prefill: {overdue_base: 30s}\n"}, func(t *testing.T, f *fleet) {
		f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultEarly200}) // so that the answer is held
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultSlow, Factor: 1, DelayMS: 5000, Count: 1})
		done := make(chan *reply, 1)
		go func() { done <- f.send(t.Context(), "/v1/completions", completion("its worker leaves", 4, true)) }()
		f.await("prefill to run", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 1 })
		f.publish(f.decode...)
		r := <-done
		require.Equal(t, http.StatusServiceUnavailable, r.status, r.body)
		require.Contains(t, r.body, `"code":"prefill_gone"`, "the fresh attempt finds no prefill worker, and SGLang's decode cannot do without")
		require.EqualValues(t, 1, f.metric("baton_fresh_picks_total"))
		f.await("its prefill to be ended", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 0 && s.KVHeldBlocks == 0 })
		f.publish(f.workers...)
		f.await("it to serve again", func() bool {
			return f.send(t.Context(), "/v1/completions", completion("back", 1, false)).status == http.StatusOK
		})
	})
}
