//go:build e2e

package envoytest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// whoWentAside lists the workers that were set aside, each once.
func (f *fleet) whoWentAside() (out []worker.ID) {
	f.t.Helper()
	var state struct {
		Transitions []struct{ What, To string }
	}
	require.NoError(f.t, json.Unmarshal([]byte(f.adminGet("/debug/state")), &state))
	for _, x := range state.Transitions {
		if x.To != "aside" {
			continue
		}
		id, err := worker.ParseID(strings.Fields(strings.TrimPrefix(x.What, "worker "))[0])
		require.NoError(f.t, err, x.What)
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// TestALoneDecodeThatHangsIsWaitedFor: it answers probes and nothing else. Its prefill workers
// wait for it at the rendezvous, and are as silent as it is. Another attempt would meet it again,
// so requests wait to their deadlines, and nobody is set aside.
func TestALoneDecodeThatHangsIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, prefills := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d+1", prefills), func(t *testing.T) {
			t.Parallel()
			either(t, layout{prefill: prefills, decode: 1, config: "prefill: {overdue_base: 500ms, orphan_grace: 300ms}\n"}, func(t *testing.T, f *fleet) {
				for i := range 4 {
					prompt := fmt.Sprintf("all is well, %d", i)
					requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
				}
				f.awaitOutcomes(4, "ok")
				f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultHang})
				var wg sync.WaitGroup
				for i := range 4 {
					wg.Go(func() {
						r := f.send(t.Context(), "/v1/completions", completion(fmt.Sprintf("decode hangs, %d", i), 4, i%2 == 0), "x-request-timeout-ms", "6000")
						require.Equal(t, http.StatusGatewayTimeout, r.status, "%s", r.body)
					})
				}
				wg.Wait()
				require.Positive(t, f.saw(blame.Mirrored, blame.Stuck), "it is told")
				require.Empty(t, f.whoWentAside())
				f.fault(f.decode[0], enginesim.Fault{})
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("it serves again", 4, false)), "it serves again", 4)
			})
		})
	}
}

// meetNext has round robin's next decode worker be that one.
func (f *fleet) meetNext(w *stack.Worker) {
	f.t.Helper()
	before := f.decode[(slices.Index(f.decode, w)+len(f.decode)-1)%len(f.decode)]
	f.await("it to be the turn of "+w.Name, func() bool {
		prompt := "whose turn is it"
		requireAnswer(f.t, f.send(f.t.Context(), "/v1/completions", completion(prompt, 4, false)), prompt, 4)
		return f.decisions()[0].Decode.WorkerID == before.Info.ID.String()
	})
}

// TestADecodeThatDiesOrHangsDoesNotBlameItsPrefill: a decode worker fails one request,
// whose prefill goes on for much longer than it may take, and is late for nobody. Others
// come four a second, and each is served.
func TestADecodeThatDiesOrHangsDoesNotBlameItsPrefill(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]enginesim.Fault{
		"dies":  {Mode: enginesim.FaultTruncate, When: enginesim.Before, DelayMS: 100, Count: 1}, // and is back at once: in 1+1 nobody else could serve
		"hangs": {Mode: enginesim.FaultHang, Count: 1},
	} {
		for _, n := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d+%d", name, n, n), func(t *testing.T) {
				t.Parallel()
				l := layout{
					prefill: n, decode: n, prefillArgs: []string{"--prefill-us-per-token", "1000"},
					config: "prefill: {overdue_base: 300ms, overdue_per_token: 0s, orphan_grace: 2s}\nrouting: {decode: {mode: round-robin}}\n",
				}
				either(t, l, func(t *testing.T, f *fleet) {
					f.meetNext(f.decode[0])
					f.fault(f.decode[0], fault)
					had := f.received(f.decode[0])
					victim := f.begin(question{path: "/v1/completions", body: completion(strings.Repeat("a long prompt ", 500), 4, false)})
					f.await("decode to have its request", func() bool { return f.received(f.decode[0]) > had })
					f.steady(7, 250*time.Millisecond, func(i int) {
						prompt := fmt.Sprintf("another's, %d", i)
						requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
						if i == 4 {
							victim.leave() // it has waited for a second
						}
					})
					<-victim.reply
					f.await("the orphans to be ended", func() bool { return f.metric("baton_worker_prefill_requests") == 0 })
					require.Empty(t, f.whoWentAside(), "one request is no reason")
				})
			})
		}
	}
}

// bootstrap is where decode workers meet a prefill worker.
func bootstrap(w *stack.Worker) string {
	return net.JoinHostPort(w.Info.Bootstrap.Host, strconv.Itoa(int(w.Info.Bootstrap.Port)))
}

// TestAPairThatFailsOnlyWithEachOtherBlamesNeither: one decode worker cannot reach one
// prefill worker. Each serves with everybody else.
func TestAPairThatFailsOnlyWithEachOtherBlamesNeither(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 2, decode: 2, decodeArgs: []string{"--heartbeat-interval", "50ms"}, config: everyTurn}
	either(t, l, func(t *testing.T, f *fleet) {
		f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultApart, From: bootstrap(f.prefill[0])})
		for i := range 24 {
			prompt := fmt.Sprintf("one pair is apart, %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
		}
		f.awaitOutcomes(24, "ok")
		f.awaitSaw(blame.Decode, blame.Unfetched)
		require.Empty(t, f.whoWentAside())
		f.fault(f.decode[0], enginesim.Fault{})
	})
}

// TestASideIsBlamedOnceItFailsWithTwoPartners: what one pair fails may be the way between
// the two; what a worker fails with two others is its own.
func TestASideIsBlamedOnceItFailsWithTwoPartners(t *testing.T) {
	t.Parallel()
	for name, blamed := range map[string]func(f *fleet) *stack.Worker{
		"prefill": func(f *fleet) *stack.Worker {
			f.faultAll(f.decode, enginesim.Fault{Mode: enginesim.FaultApart, From: bootstrap(f.prefill[0])})
			return f.prefill[0]
		},
		"decode": func(f *fleet) *stack.Worker {
			f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultError, When: enginesim.After})
			return f.decode[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			either(t, layout{prefill: 2, decode: 2, decodeArgs: []string{"--heartbeat-interval", "50ms"}, config: everyTurn}, func(t *testing.T, f *fleet) {
				bad := blamed(f)
				for i := range 24 {
					prompt := fmt.Sprintf("it fails with everybody, %d", i)
					requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
				}
				f.awaitOutcomes(24, "ok")
				require.Equal(t, []worker.ID{bad.Info.ID}, f.whoWentAside())
				f.faultAll(f.decode, enginesim.Fault{})
			})
		})
	}
}

// failedOnce returns the two attempts of a request of which the first one failed: a
// worker fails the first request that it meets.
func (f *fleet) failedOnce(w *stack.Worker, x enginesim.Fault) (first, second decisionSeen) {
	f.t.Helper()
	x.Count = 1
	f.fault(w, x)
	known := len(f.decisions())
	f.await(w.Name+" to fail a request", func() bool {
		prompt := fmt.Sprintf("%s of %s", x.Mode, w.Name)
		requireAnswer(f.t, f.send(f.t.Context(), "/v1/completions", completion(prompt, 4, false)), prompt, 4)
		f.await("it to be counted", func() bool { return f.metric("baton_requests_total") == float64(f.sent.Load()) })
		all := f.decisions()
		second, first = all[0], all[1]
		return len(all) > known+1 && second.Attempt == 2
	})
	require.Equal(f.t, first.RequestID, second.RequestID)
	require.Contains(f.t, []string{first.Prefill.WorkerID, first.Decode.WorkerID}, w.Info.ID.String())
	return first, second
}

// TestAFreshPickAvoidsEveryWorkerThatMayBeAtFault: the one that has failed, or both of a
// pair where either may have. Two of each are there, so who is avoided decides who is
// picked.
func TestAFreshPickAvoidsEveryWorkerThatMayBeAtFault(t *testing.T) {
	t.Parallel()
	either(t, layout{prefill: 2, decode: 2, config: "health: {server_errors: 100}\nprefill: {overdue_base: 300ms, orphan_grace: 300ms}\nrouting: {prefill: {mode: round-robin}, decode: {mode: round-robin}}\n"}, func(t *testing.T, f *fleet) {
		for _, x := range []struct {
			what  string
			bad   *stack.Worker
			fault enginesim.Fault
			pair  bool
		}{
			{"decode says 500: it, or the hand-off", f.decode[0], enginesim.Fault{Mode: enginesim.FaultError, When: enginesim.After}, true},
			{"neither says anything", f.decode[1], enginesim.Fault{Mode: enginesim.FaultHang}, true},
			{"prefill says 500", f.prefill[0], enginesim.Fault{Mode: enginesim.FaultError}, false},
			{"decode loses the connection", f.decode[0], enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Before}, false},
		} {
			first, second := f.failedOnce(x.bad, x.fault)
			if x.pair || x.bad.Info.Role == worker.Prefill {
				require.NotEqual(t, first.Prefill.WorkerID, second.Prefill.WorkerID, x.what)
			}
			if x.pair || x.bad.Info.Role == worker.Decode {
				require.NotEqual(t, first.Decode.WorkerID, second.Decode.WorkerID, x.what)
			}
		}
	})
}

// TestALonePairThatFailsIsToldAfterOneAttempt: nobody else could do better.
func TestALonePairThatFailsIsToldAfterOneAttempt(t *testing.T) {
	t.Parallel()
	either(t, layout{prefill: 1, decode: 1, decodeArgs: []string{"--heartbeat-interval", "50ms"}, config: everyTurn}, func(t *testing.T, f *fleet) {
		for i, fault := range []enginesim.Fault{
			{Mode: enginesim.FaultApart, From: bootstrap(f.prefill[0])},
			{Mode: enginesim.FaultError, When: enginesim.After, Status: 500},
		} {
			f.fault(f.decode[0], fault)
			r := f.send(t.Context(), "/v1/completions", completion("the hand-off fails", 4, false))
			require.NoError(t, r.err)
			require.Equal(t, http.StatusInternalServerError, r.status, "decode's own words")
			f.awaitOutcomes(i+1, "failed", `code="decode_failed"`)
		}
		require.Zero(t, f.metric("baton_fresh_picks_total"))
		require.Empty(t, f.whoWentAside(), "two are few")
		f.fault(f.decode[0], enginesim.Fault{})
		f.await("the orphan to be ended", func() bool { return f.metric("baton_worker_prefill_requests") == 0 })
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("they meet again", 4, false)), "they meet again", 4)
	})
}

// TestPicturesSetNobodyAside: what pictures cost their prompts do not tell. First one, then
// eight at once take five times as long as a prompt may, where prompts
// have been fast.
func TestPicturesSetNobodyAside(t *testing.T) {
	t.Parallel()
	either(t, layout{prefill: 2, decode: 2, config: "prefill: {overdue_base: 300ms}\n"}, func(t *testing.T, f *fleet) {
		for i := range 4 {
			prompt := fmt.Sprintf("no picture, %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, false)), prompt, 4)
		}
		f.faultAll(f.prefill, enginesim.Fault{Mode: enginesim.FaultSlow, Factor: 1, DelayMS: 800})
		const picture = `{"model":"m","max_tokens":4,"messages":[{"role":"user","content":[{"type":"text","text":"what is this, %d"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`
		for n, pictures := range []int{1, 8} {
			var wg sync.WaitGroup
			for i := range pictures {
				wg.Go(func() {
					r := f.send(t.Context(), "/v1/chat/completions", fmt.Sprintf(picture, 10*n+i))
					require.NoError(t, r.err)
					require.Equal(t, http.StatusOK, r.status, r.body)
				})
			}
			wg.Wait()
		}
		f.awaitOutcomes(13, "ok")
		require.Zero(t, f.metric("baton_fresh_picks_total"), "no attempt was ended")
		require.Empty(t, f.whoWentAside())
	})
}
