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

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/enginesim"
	"github.com/seed-60ae5743/baton/internal/stack"
	"github.com/seed-60ae5743/baton/pkg/worker"
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
		id, err := worker.ParseID(strings.TrimPrefix(x.What, "worker "))
		require.NoError(f.t, err, x.What)
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// TestAHungDecodeIsTheOneThatIsSetAside: it answers probes and nothing else. Its prefill
// workers wait for it at the rendezvous, and are as silent as it is.
func TestAHungDecodeIsTheOneThatIsSetAside(t *testing.T) {
	t.Parallel()
	for _, prefills := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d+1", prefills), func(t *testing.T) {
			t.Parallel()
			both(t, layout{prefill: prefills, decode: 1, config: "prefill: {overdue_base: 500ms, orphan_grace: 300ms}\n"}, func(t *testing.T, f *fleet) {
				for i := range 4 {
					prompt := fmt.Sprintf("all is well, %d", i)
					requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
				}
				f.awaitOutcomes(4, "ok")
				f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultHang})
				var wg sync.WaitGroup
				for i := range 4 {
					wg.Go(func() {
						r := f.send(t.Context(), "/v1/completions", completion(fmt.Sprintf("decode hangs, %d", i), 4, i%2 == 0), "x-request-timeout-ms", "8000")
						require.GreaterOrEqual(t, r.status, 500, "no worker serves it")
					})
				}
				wg.Wait()
				require.Positive(t, f.metric("baton_aside_transitions_total", `to="aside"`, `reason="overdue"`))
				require.EqualValues(t, prefills, f.metric("baton_workers", `role="prefill"`, `state="healthy"`), "they are as they were")
				require.Zero(t, f.metric("baton_workers", `role="decode"`, `state="healthy"`))
				require.Equal(t, []worker.ID{f.decode[0].Info.ID}, f.whoWentAside(), "decode, and only it")
				f.fault(f.decode[0], enginesim.Fault{})
				f.await("decode to be let back", func() bool {
					return f.send(t.Context(), "/v1/completions", completion("it serves again", 4, false)).status == 200
				})
			})
		})
	}
}

// TestADecodeThatDiesOrHangsDoesNotBlameItsPrefill: prefill goes on for a while after its
// decode has died, or hangs, and is late for nobody.
func TestADecodeThatDiesOrHangsDoesNotBlameItsPrefill(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]enginesim.Fault{
		"dies":  {Mode: enginesim.FaultDie, When: enginesim.Before, DelayMS: 100},
		"hangs": {Mode: enginesim.FaultHang},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, layout{prefill: 1, decode: 2, config: "prefill: {overdue_base: 500ms, orphan_grace: 2s}\nrouting: {decode: {mode: round-robin}}\n"}, func(t *testing.T, f *fleet) {
				f.fault(f.decode[0], fault)
				for i := range 6 {
					prompt := fmt.Sprintf("one of two decodes %s, %d", name, i)
					requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
				}
				f.await("the orphans to be ended", func() bool { return f.metric("baton_worker_prefill_requests") == 0 })
				for _, id := range f.whoWentAside() {
					require.Equal(t, f.decode[0].Info.ID, id, "nobody else is at fault")
				}
				require.EqualValues(t, 1, f.metric("baton_workers", `role="prefill"`, `state="healthy"`))
				if fault.Mode == enginesim.FaultHang {
					f.fault(f.decode[0], enginesim.Fault{})
				}
			})
		})
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
	both(t, l, func(t *testing.T, f *fleet) {
		f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultApart, From: bootstrap(f.prefill[0])})
		for i := range 24 {
			prompt := fmt.Sprintf("one pair is apart, %d", i)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
		}
		f.awaitOutcomes(24, "ok")
		require.Positive(t, f.saw(blame.Decode, blame.Unfetched), "the pair was tried")
		require.Empty(t, f.whoWentAside())
		f.fault(f.decode[0], enginesim.Fault{})
	})
}

// TestALonePairThatFailsIsToldAfterOneAttempt: nobody else could do better.
func TestALonePairThatFailsIsToldAfterOneAttempt(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, decodeArgs: []string{"--heartbeat-interval", "50ms"}, config: everyTurn}, func(t *testing.T, f *fleet) {
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

// TestPicturesSetNobodyAside: what pictures cost their prompts do not tell. Some take
// longer than any prompt of theirs may, and nothing is known of the workers.
func TestPicturesSetNobodyAside(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 2, prefillArgs: []string{"--prefill-base-us", "2500000", "--max-running", "64"}, config: "prefill: {overdue_base: 500ms}\n"}, func(t *testing.T, f *fleet) {
		const picture = `{"model":"m","max_tokens":4,"messages":[{"role":"user","content":[{"type":"text","text":"what is this, %d"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				r := f.send(t.Context(), "/v1/chat/completions", fmt.Sprintf(picture, i))
				require.NoError(t, r.err)
				require.Equal(t, http.StatusOK, r.status, r.body)
			})
		}
		wg.Wait()
		f.awaitOutcomes(8, "ok")
		require.Zero(t, f.metric("baton_fresh_picks_total"), "no attempt was ended")
		require.Empty(t, f.whoWentAside())
	})
}
