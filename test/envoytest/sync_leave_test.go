//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// leaver is a request whose client can leave.
type leaver struct {
	leave context.CancelFunc
	reply chan *reply
}

func (f *fleet) begin(q question) *leaver { return f.beginWith(q) }

// beginWith is begin with headers: name, value, name, value…
func (f *fleet) beginWith(q question, headers ...string) *leaver {
	ctx, cancel := context.WithCancel(f.t.Context())
	l := &leaver{cancel, make(chan *reply, 1)}
	go func() { l.reply <- f.send(ctx, q.path, q.body, headers...) }()
	return l
}

func (f *fleet) leaves(l *leaver) {
	f.t.Helper()
	l.leave()
	require.Error(f.t, (<-l.reply).err)
}

// leavesPrefill is leaves for a client whose prefill runs. It returns when the plugin
// has seen it: Envoy tells it later than the client's own socket does, and prefill
// could end between the two.
func (f *fleet) leavesPrefill(l *leaver) {
	f.t.Helper()
	open := func() float64 { return f.metric("baton_streams_in_flight", `leg="main"`) }
	before := open()
	f.leaves(l)
	f.await("the plugin to see its client leave", func() bool { return open() < before })
}

// TestAClientThatLeavesLeavesNothingHeld is docs/behaviour.md#client-leaves and
// #collected with prefill first: what is dispatched runs on, and the KV is taken by a
// decode for one token, or freed by the decode that has seen it.
func TestAClientThatLeavesLeavesNothingHeld(t *testing.T) {
	t.Parallel()
	l := layout{
		prefill: 1, decode: 1, config: "prefill: {overdue_base: 30s}\n",
		decodeArgs: []string{"--max-running", "1", "--decode-us-per-token", "20000"},
	}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		collected := func() float64 { return f.metric("baton_prefill_legs_total", `outcome="collected"`) }
		qs := ask("leaves", 300)

		goOn := f.hold(f.prefill[0], enginesim.Before)
		c := f.begin(qs[2]) // while prefill computes
		f.await("prefill to run", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 1 })
		f.leavesPrefill(c)
		goOn()
		f.await("prefill to end by itself", func() bool { s, _ := f.state(f.prefill[0]); return s.OK == 1 })
		f.await("its KV to be collected", func() bool { return collected() == 1 })
		f.awaitCollected()
		d := f.ended(f.decode)
		require.Len(t, d, 1)
		require.Equal(t, 1, d[0].OutputTokens)
		require.Contains(t, d[0].Body, `"stream":false`)
		requireHonest(t, "collecting", d[0], "-")

		first := f.begin(qs[3]) // while decode streams; the next waits for its place there
		f.await("decode to stream", func() bool { s, _ := f.state(f.decode[0]); return s.Running == 1 && s.DecodeWaiting == 0 })
		second := f.begin(qs[2])
		f.await("the second to queue at decode", func() bool { s, _ := f.state(f.decode[0]); return s.Queued == 1 })
		f.leaves(second)
		f.await("the second to be given up", func() bool { s, _ := f.state(f.decode[0]); return s.Queued == 0 && s.Running == 1 })
		f.leaves(first)
		f.await("the first to be given up", func() bool { s, _ := f.state(f.decode[0]); return s.Running == 0 })
		f.awaitCollected()
		require.EqualValues(t, 1, collected(), "what decode has seen is its own business")
		h := f.ledger()
		require.Equal(t, [4]uint64{3, 2, 1, 0}, [4]uint64{h.Given, h.Taken, h.Released, h.Expired})
		s, _ := f.state(f.prefill[0])
		require.Zero(t, s.Canceled, "no prefill was cancelled")
	})
}

// TestAClientThatLeavesAsDecodeCannotBeReached: the KV goes to another.
func TestAClientThatLeavesAsDecodeCannotBeReached(t *testing.T) {
	t.Parallel()
	eachSync(t, layout{prefill: 1, decode: 2, config: "prefill: {overdue_base: 30s}\n"}, func(t *testing.T, f *fleet, _ worker.Engine) {
		goOn := f.hold(f.prefill[0], enginesim.Before)
		c := f.begin(ask("leaves", 8)[3])
		f.await("prefill to run", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 1 })
		f.leavesPrefill(c)
		dead := f.decode[0]
		if f.metric("baton_worker_decode_requests", fmt.Sprintf("worker_id=%q", f.decode[1].Info.ID)) == 1 {
			dead = f.decode[1]
		}
		require.NoError(t, dead.Kill())
		goOn()
		f.await("its KV to be collected", func() bool { return f.metric("baton_prefill_legs_total", `outcome="collected"`) == 1 })
		f.awaitCollected()
		require.EqualValues(t, 1, f.ledger().Taken)
	})
}

// TestThePluginEndsWhilePrefillRuns: told to, it serves what it has, and the worker
// keeps nothing. What a kill does is TestThePluginIsKilledUnderARequestWithPrefillFirst.
func TestThePluginEndsWhilePrefillRuns(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 1, config: "prefill: {overdue_base: 30s}\n", noCheck: true}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		var goOn func()
		begin := func(q question) *leaver {
			t.Helper()
			goOn = f.hold(f.prefill[0], enginesim.Before)
			c := f.begin(q)
			f.await("prefill to run", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 1 })
			return c
		}
		ends := func() {
			t.Helper()
			stopped := f.drains()
			goOn()
			require.NoError(t, <-stopped, "it ends with exit code 0")
			f.settled()
		}
		q := ask("the plugin is told to end", 6)[3]
		stays := begin(q)
		ends()
		q.require(t, <-stays.reply)

		f.again()
		gone := begin(q)
		f.leavesPrefill(gone)
		ends()
		require.Zero(t, f.ledger().Expired)
	})
}

// again starts the plugin after its end and waits until Envoy has found it, and no
// worker works any more.
func (f *fleet) again() {
	f.t.Helper()
	f.startPlugin()
	f.await("the new plugin to serve", func() bool {
		return f.send(f.t.Context(), "/v1/completions", completion("again", 1, false)).status == http.StatusOK
	})
	f.settled()
}

// TestTwoHundredAtOnce: each is prefilled once, by nobody twice.
func TestTwoHundredAtOnce(t *testing.T) {
	t.Parallel()
	l := layout{
		prefill: 2, decode: 2, config: "tokens: {mode: estimate}\nprefill: {start_timeout: 10s, overdue_base: 60s}\n",
		prefillArgs: []string{"--prefill-base-us", "100000"},
	}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		const n = 200
		var wg sync.WaitGroup
		var wrong atomic.Int64
		for i := range n {
			wg.Go(func() {
				q := ask(fmt.Sprintf("one of two hundred %d", i), 10)[i%4]
				if r := f.send(t.Context(), q.path, q.body); r.err != nil || r.status != http.StatusOK {
					wrong.Add(1)
					t.Errorf("request %d: %d %v %.200s", i, r.status, r.err, r.body)
				}
			})
		}
		wg.Wait()
		require.Zero(t, wrong.Load())
		require.Zero(t, f.metric("baton_fresh_picks_total"))
		h := f.ledger()
		require.Equal(t, [2]uint64{n, n}, [2]uint64{h.Given, h.Taken})
	})
}

// TestTheDeadlineHoldsWhilePrefillRuns is docs/behaviour.md#deadline with prefill
// first; and a prefill may take longer than Envoy waits for a message of ours by
// itself: here 2 s, and the delay is met twice.
func TestTheDeadlineHoldsWhilePrefillRuns(t *testing.T) {
	t.Parallel()
	short := func(y string) string { return strings.ReplaceAll(y, " message_timeout: 5s", " message_timeout: 2s") }
	l := layout{prefill: 1, decode: 1, config: "prefill: {overdue_base: 1m}\n", patch: short}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultSlow, DelayMS: 1500, Factor: 1, Count: 2})
		q := ask("a long prefill", 4)[1]
		slow := f.begin(q)
		f.await("prefill to run", func() bool { s, _ := f.state(f.prefill[0]); return s.Running == 1 })
		r := f.send(t.Context(), q.path, q.body, "x-request-timeout-ms", "800")
		requireError(t, r, http.StatusGatewayTimeout, "deadline_exceeded")
		q.require(t, <-slow.reply)
		require.Zero(t, f.metric("baton_fresh_picks_total"), "Envoy has waited for the first prefill, not given the attempt up")
		f.await("both to have ended", func() bool { return f.ledger().Given == 2 })
		f.awaitCollected()
		f.await("the count of collected hand-offs", func() bool {
			return f.metric("baton_prefill_legs_total", `outcome="collected"`) == 1
		})
	})
}

// TestALargeBodyGoesThroughBothLegs: 9 MB.
func TestALargeBodyGoesThroughBothLegs(t *testing.T) {
	t.Parallel()
	eachSync(t, layout{prefill: 1, decode: 1, simArgs: []string{"--prefill-us-per-token", "0", "--max-model-len", "20000000", "--capacity-blocks", "2000000"},
		config: "prefill: {" + inLoad + "}\n"}, func(t *testing.T, f *fleet, _ worker.Engine) {
		body := paddedCompletion(9 << 20)
		r := f.send(t.Context(), "/v1/completions", body)
		require.NoError(t, r.err)
		require.Equal(t, http.StatusOK, r.status, r.body)
		prefill, decode := f.legs()
		require.Greater(t, prefill.BodyBytes, 9<<20)
		require.Positive(t, decode.BodyBytes)
		require.Equal(t, prefill.Handoff, decode.Handoff)
	})
}
