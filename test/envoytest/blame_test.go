//go:build e2e

package envoytest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// The tests here are of section Blame of ARCHITECTURE.md: nobody healthy is set aside,
// nobody sick is praised.

// everyTurn meets every worker: what is sick is not passed over by chance.
const everyTurn = "prefill: {orphan_grace: 300ms}\nrouting: {prefill: {mode: round-robin}, decode: {mode: round-robin}, aggregated: {mode: round-robin}}\n"

// requireLeft requires that a worker has left the traffic, aside or doubted, and that no other
// one is aside. Another one may be suspected or doubted on a busy machine.
func (f *fleet) requireLeft(bad *stack.Worker) {
	f.t.Helper()
	for _, w := range look(f.t, f.plugin).Workers {
		if w.Endpoint == bad.Info.Endpoint.String() {
			require.True(f.t, w.State == "aside" || strings.HasPrefix(w.Reason, "doubted"), "%s, %s", w.State, w.Reason)
		} else {
			require.NotEqual(f.t, "aside", w.State, w.Reason)
		}
	}
}

// setAside counts how often a worker was.
func (f *fleet) setAside() float64 { return f.metric("baton_aside_transitions_total", `to="aside"`) }

// outcomes counts requests that ended so.
func (f *fleet) outcomes(outcome string, more ...string) float64 {
	return f.metric("baton_requests_total", append([]string{fmt.Sprintf("outcome=%q", outcome)}, more...)...)
}

// awaitOutcomes waits until n requests have ended so: Envoy's access log comes a little
// later than the answer's end.
func (f *fleet) awaitOutcomes(n int, outcome string, more ...string) {
	f.t.Helper()
	f.await(fmt.Sprintf("%d requests to end as %s %v", n, outcome, more), func() bool { return f.outcomes(outcome, more...) == float64(n) })
}

// TestAClientsOwnDeadlineBlamesNobody: Envoy ends both legs of a request whose deadline
// passes, whatever its workers do.
func TestAClientsOwnDeadlineBlamesNobody(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, prefillArgs: []string{"--prefill-base-us", "400000"}}, func(t *testing.T, f *fleet) {
		for i := range 5 {
			r := f.send(t.Context(), "/v1/completions", completion("in a hurry", 4, i%2 == 0), "x-request-timeout-ms", "150")
			requireError(t, r, http.StatusGatewayTimeout, "deadline_exceeded")
			prompt := fmt.Sprintf("has time, request %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, false)), prompt, 4)
		}
		require.Zero(t, f.setAside())
		f.awaitOutcomes(5, "failed", `code="deadline_exceeded"`)
		f.awaitOutcomes(5, "ok")
	})
}

// sick is a way in which one of two workers fails every request at once.
type sick struct {
	name   string
	fault  enginesim.Fault
	stream bool
}

// TestAWorkerThatRefusesWhatItsMateServesIsSetAside: a worker that answers at once
// with a refusal, or with nothing, does not become the cheapest.
func TestAWorkerThatRefusesWhatItsMateServesIsSetAside(t *testing.T) {
	t.Parallel()
	for _, s := range []sick{
		{name: "404", fault: enginesim.Fault{Mode: enginesim.FaultError, Status: 404}},
		{name: "401", fault: enginesim.Fault{Mode: enginesim.FaultError, Status: 401}},
		{name: "429", fault: enginesim.Fault{Mode: enginesim.FaultError, Status: 429}},
		{name: "500", fault: enginesim.Fault{Mode: enginesim.FaultError, Status: 500}},
		{name: "nothing", fault: enginesim.Fault{Mode: enginesim.FaultEmpty}},
		{name: "an empty stream", fault: enginesim.Fault{Mode: enginesim.FaultEmpty}, stream: true},
		{name: "an error in the stream", fault: enginesim.Fault{Mode: enginesim.FaultError, When: enginesim.Begun}, stream: true},
	} {
		for _, role := range []string{"prefill", "decode", "aggregated"} {
			if s.stream && role == "prefill" {
				continue // a prefill leg is never streamed
			}
			t.Run(role+" "+s.name, func(t *testing.T) {
				t.Parallel()
				l := layout{prefill: 2, decode: 2, config: everyTurn}
				if role == "aggregated" {
					l = layout{aggregated: 2, config: everyTurn}
				}
				both(t, l, func(t *testing.T, f *fleet) {
					bad := f.workers[0]
					if role == "decode" {
						bad = f.decode[0]
					}
					f.fault(bad, s.fault)
					const n = 12
					for i := range n {
						prompt := fmt.Sprintf("request %d of many", i)
						requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, s.stream)), prompt, 4)
						f.awaitOutcomes(i+1, "ok")
					}
					require.EqualValues(t, 1, f.metric("baton_workers", fmt.Sprintf("role=%q", role), `state="healthy"`),
						"one of two: the sick one is aside, or recovering")
				})
			})
		}
	}
}

// TestWhatEveryWorkerRefusesBlamesNobody: the request is at fault.
func TestWhatEveryWorkerRefusesBlamesNobody(t *testing.T) {
	t.Parallel()
	for _, status := range []int{404, 429, 500} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			both(t, layout{aggregated: 3, config: everyTurn}, func(t *testing.T, f *fleet) {
				for _, w := range f.workers {
					f.fault(w, enginesim.Fault{Mode: enginesim.FaultError, Status: status, After: "17"})
				}
				for range 20 {
					r := f.send(t.Context(), "/v1/completions", completion("poison", 4, false))
					require.NoError(t, r.err)
					require.Equal(t, status, r.status, "the worker's own words")
					require.Equal(t, "17", r.header.Get("retry-after"), "and when it wants to be asked again")
				}
				require.Zero(t, f.setAside())
				if status < 500 {
					f.awaitOutcomes(20, "rejected", `code="decode_rejected"`)
				} else {
					f.awaitOutcomes(20, "failed", `code="decode_failed"`)
				}
				if status == 404 {
					require.LessOrEqual(t, f.metric("baton_fresh_picks_total"), 4.0, "a mate is asked while nothing is known, and then 1 % of the time")
				}
				for _, w := range f.workers {
					f.fault(w, enginesim.Fault{})
				}
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("well", 4, false)), "well", 4)
			})
		})
	}
}

// TestWhatEveryPairFailsBlamesNobody: where all workers of a role are busy, what they say
// of when to come back survives; a request that all answer with 500 is itself at fault.
func TestWhatEveryPairFailsBlamesNobody(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := layout{prefill: 2, decode: 2, simArgs: []string{"--poison", "poison"}, config: everyTurn}
			if engine == worker.VLLM {
				l.prefillArgs = shortLease
			}
			both(t, layoutOf(l, engine), func(t *testing.T, f *fleet) {
				for code, ws := range map[string][]*stack.Worker{"prefill_busy": f.prefill, "decode_rejected": f.decode} {
					f.faultAll(ws, enginesim.Fault{Mode: enginesim.FaultError, Status: 429, After: "17"})
					for range 6 {
						r := f.send(t.Context(), "/v1/completions", completion("busy", 4, false))
						require.NoError(t, r.err)
						require.Equal(t, http.StatusTooManyRequests, r.status, r.body)
						require.Equal(t, "17", r.header.Get("retry-after"), code)
					}
					f.awaitOutcomes(6, "rejected", fmt.Sprintf("code=%q", code))
					f.faultAll(ws, enginesim.Fault{})
				}
				for i := range 12 {
					r := f.send(t.Context(), "/v1/completions", completion("poison", 4, i%2 == 0))
					require.NoError(t, r.err)
					require.GreaterOrEqual(t, r.status, 500, r.body)
				}
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("well", 4, false)), "well", 4)
				require.Empty(t, f.whoWentAside())
			})
		})
	}
}

// TestAFailingDecodeDoesNotBlameItsPrefill: a prefill that nobody waits for any more is
// late for nobody.
func TestAFailingDecodeDoesNotBlameItsPrefill(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, config: "prefill: {overdue_base: 200ms, orphan_grace: 2s}\n"}, func(t *testing.T, f *fleet) {
		for i := range 3 {
			goOn := f.hold(f.prefill[0], enginesim.Mid)
			f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultError, Status: 400, Count: 1})
			r := f.send(t.Context(), "/v1/completions", completion("decode refuses", 4, false))
			require.Equal(t, http.StatusBadRequest, r.status)
			f.await("the orphan to be ended", func() bool { return f.metric("baton_worker_prefill_requests") == 0 })
			goOn()
			prompt := fmt.Sprintf("another's, %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, false)), prompt, 4)
		}
		require.Zero(t, f.setAside())
	})
}

// TestAPrefillThatTakesThreeSecondsServesAll: with the defaults, at once, by workers of
// which nothing is known.
func TestAPrefillThatTakesThreeSecondsServesAll(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d+%d", n, n), func(t *testing.T) {
			t.Parallel()
			l := layout{prefill: n, decode: n, prefillArgs: []string{"--prefill-base-us", "3000000", "--max-running", "64"}}
			both(t, l, func(t *testing.T, f *fleet) {
				var wg sync.WaitGroup
				for i := range 25 {
					wg.Go(func() {
						prompt := fmt.Sprintf("slow and well, %d", i)
						requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
					})
				}
				wg.Wait()
				require.Zero(t, f.setAside())
			})
		})
	}
}

// TestAStoppedDecodeCostsNoRequest: its kernel takes connections and nobody answers.
func TestAStoppedDecodeCostsNoRequest(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 2, config: everyTurn}, func(t *testing.T, f *fleet) {
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("all is well", 4, false)), "all is well", 4)
		bad := f.decode[0]
		require.NoError(t, bad.Signal(syscall.SIGSTOP))
		defer func() { require.NoError(t, bad.Signal(syscall.SIGCONT)) }()
		f.steady(24, 250*time.Millisecond, func(i int) {
			prompt := fmt.Sprintf("a decode is stopped, %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
		})
		f.requireLeft(bad)
	})
}

// steady calls do n times, each in its time, and waits for all.
func (f *fleet) steady(n int, every time.Duration, do func(i int)) {
	f.t.Helper()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { do(i) })
		<-tick.C
	}
	wg.Wait()
}

// TestADecodeThatLeavesEndsWhatWaitsForIt: what it has is asked of another.
func TestADecodeThatLeavesEndsWhatWaitsForIt(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 2, config: everyTurn}, func(t *testing.T, f *fleet) {
		f.hold(f.decode[0], enginesim.After)
		f.hold(f.decode[1], enginesim.After)
		c := f.begin(ask("its decode leaves", 4)[0])
		var has *stack.Worker
		f.await("decode to have the request", func() bool {
			for _, w := range f.decode {
				if s, _ := f.state(w); s.Running == 1 {
					has = w
				}
			}
			return has != nil
		})
		for _, w := range f.decode {
			if w != has {
				f.fault(w, enginesim.Fault{})
				f.publish(f.prefill[0], w)
			}
		}
		ask("its decode leaves", 4)[0].require(t, <-c.reply)
		require.Zero(t, f.setAside())
	})
}

// TestADecodeThatBreaksOffIsNotPraised: its head is well, its end never is.
func TestADecodeThatBreaksOffIsNotPraised(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 2, config: everyTurn}, func(t *testing.T, f *fleet) {
		f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Mid})
		cut, late := 0, 0
		for i := range 32 {
			prompt := fmt.Sprintf("one of two breaks off, %d", i)
			r := f.send(t.Context(), "/v1/completions", completion(prompt, 8, true))
			f.await("it to be counted", func() bool { return f.metric("baton_requests_total") == float64(i+1) })
			if r.err != nil {
				if cut++; i >= 18 {
					late++
				}
				continue
			}
			requireAnswer(t, r, prompt, 8)
		}
		require.LessOrEqual(t, cut-late, 8, "nothing was known of either")
		require.LessOrEqual(t, late, 1, "of fourteen more: it may be tried once")
		f.awaitOutcomes(cut, "cut", `code="answer_cut"`)
		f.awaitOutcomes(32-cut, "ok")
	})
}

// TestAllDeadWorkersOfAPoolAreSetAside: a refused connection needs no share of the
// pool.
func TestAllDeadWorkersOfAPoolAreSetAside(t *testing.T) {
	t.Parallel()
	both(t, layout{aggregated: 6, config: everyTurn}, func(t *testing.T, f *fleet) {
		for _, w := range f.workers[1:] {
			require.NoError(t, w.Kill())
		}
		for i := range 12 {
			prompt := fmt.Sprintf("five of six are dead, %d", i)
			r := f.send(t.Context(), "/v1/completions", completion(prompt, 4, false))
			if i >= 5 {
				requireAnswer(t, r, prompt, 4)
			}
		}
		require.EqualValues(t, 5, f.metric("baton_workers", `state="aside"`))
	})
}
