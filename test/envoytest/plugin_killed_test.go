//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// killed asks q of a worker that stops at a moment, kills the plugin when now says so,
// lets the worker go on if it is to, starts a new plugin, in which nothing is booked,
// and returns what the client got.
func (f *fleet) killed(q question, stops *stack.Worker, when enginesim.Moment, what string, now func() bool, goesOn bool) *reply {
	f.t.Helper()
	f.forget()
	goOn := f.hold(stops, when)
	l := f.begin(q)
	f.await(what, now)
	require.NoError(f.t, f.plugin.Kill())
	if goesOn {
		goOn()
	}
	r := <-l.reply
	f.settled()
	f.again()
	f.checkIdle()
	return r
}

// settled waits until no worker works or holds anything.
func (f *fleet) settled() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, 10*time.Second)
	defer cancel()
	require.NoError(f.t, stack.Settled(ctx, f.workers...))
}

func requireUnavailable(t *testing.T, r *reply) {
	t.Helper()
	requireError(t, r, http.StatusServiceUnavailable, "router_unavailable")
	require.Equal(t, "1", r.header.Get("Retry-After"))
}

// TestThePluginIsKilledUnderARequestWithPrefillFirst: the client gets its whole
// answer or one typed error, as ARCHITECTURE.md says. KV that decode has not seen
// is freed by its lease, and a new plugin has nothing booked.
func TestThePluginIsKilledUnderARequestWithPrefillFirst(t *testing.T) {
	t.Parallel()
	l := layout{
		prefill: 1, decode: 1, prefillArgs: []string{"--kv-lease", "3s"}, config: "prefill: {overdue_base: 30s}\n",
	}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		const prompt = "the plugin is killed"
		for _, q := range []question{ask(prompt, 100)[0], ask(prompt, 100)[3]} {
			r := f.killed(q, f.prefill[0], enginesim.Before, "prefill to run", func() bool {
				s, _ := f.state(f.prefill[0])
				return s.Running == 1
			}, false)
			requireUnavailable(t, r)
			for _, d := range f.gotAll(f.decode) {
				require.NotContains(t, d.Body, prompt, "no decode without its hand-off")
			}

			r = f.killed(q, f.decode[0], enginesim.Before, "decode to be asked", func() bool {
				return f.received(f.decode[0]) == 1
			}, false)
			requireUnavailable(t, r)
			require.EqualValues(t, 1, f.ledger().Expired, "decode had not looked at it")

			ends := !q.stream // its headers come with its end
			r = f.killed(q, f.decode[0], enginesim.Mid, "decode to answer", func() bool {
				s, _ := f.state(f.decode[0])
				return s.Handoff.Pulled == 1 && (!q.stream || f.metric("baton_streams_in_flight") == 0)
			}, !ends)
			if ends {
				requireUnavailable(t, r)
			} else {
				q.require(t, r)
			}
			require.Zero(t, f.ledger().Expired)
		}
	})
}

// TestThePluginIsKilledBeforeAnAnswerHasBegun is the same for engines that meet: prefill's
// leg ends with the plugin, so Envoy ends decode's, too.
func TestThePluginIsKilledBeforeAnAnswerHasBegun(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, config: "prefill: {overdue_base: 30s}\n"}, func(t *testing.T, f *fleet) {
		for _, q := range []question{ask("the plugin is killed", 10)[0], ask("the plugin is killed", 10)[3]} {
			requireUnavailable(t, f.killed(q, f.prefill[0], enginesim.Before, "both legs to run", f.bothRun, false))
		}
	})
}

// TestAPairThatEnvoyMirrorsGoesOnWithoutThePlugin: buffered, both legs are Envoy's.
func TestAPairThatEnvoyMirrorsGoesOnWithoutThePlugin(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, envoy: mirrors, config: "prefill: {overdue_base: 30s}\n"}, func(t *testing.T, f *fleet) {
		for _, q := range []question{ask("the plugin is killed", 10)[0], ask("the plugin is killed", 10)[3]} {
			r := f.killed(q, f.prefill[0], enginesim.Before, "both legs to run", f.bothRun, !f.fullDuplex)
			if f.fullDuplex {
				requireUnavailable(t, r)
			} else {
				q.require(t, r)
			}
		}
	})
}

// bothRun reports whether the only workers of a pair have the request.
func (f *fleet) bothRun() bool {
	p, _ := f.state(f.prefill[0])
	d, _ := f.state(f.decode[0])
	return p.Running == 1 && d.Running == 1
}

// TestThePluginIsKilledWithTheHandOffInItsHand: prefill has ended and holds its
// KV, and the one who would have told decode is gone.
func TestThePluginIsKilledWithTheHandOffInItsHand(t *testing.T) {
	t.Parallel()
	l := layout{
		prefill: 1, decode: 1, prefillArgs: shortLease,
		describe: func(f *fleet) {
			f.config = fmt.Sprintf("prefill: {listener: %q, overdue_base: 30s}\n", "unix://"+filepath.Join(f.dir, "tap.sock"))
		},
	}
	eachSync(t, l, func(t *testing.T, f *fleet, _ worker.Engine) {
		tapped := newTap(t, filepath.Join(f.dir, "tap.sock"), filepath.Join(f.dir, "prefill.sock"))
		goOn := tapped.holdAnswers()
		q := ask("the plugin has the hand-off", 6)[2]
		c := f.begin(q)
		f.await("prefill to hold its KV", func() bool { h := f.ledger(); return h.Given == 1 && h.Held == 1 })
		require.NoError(t, f.plugin.Kill())
		requireUnavailable(t, <-c.reply)
		goOn()
		require.Empty(t, f.gotAll(f.decode), "no decode without its hand-off")
		f.await("the lease to end", func() bool { return f.ledger().Held == 0 })
		h := f.ledger()
		require.Equal(t, [4]uint64{1, 0, 0, 1}, [4]uint64{h.Given, h.Taken, h.Released, h.Expired})
		f.again()
		q.require(t, f.send(t.Context(), q.path, q.body))
	})
}

// TestThePluginIsKilledWithinABurst: of many pairs the legs are on their way, or at their
// workers. No decode worker waits for a prefill that never comes. With a successor that is
// there within a second each request is served, else each ends within seconds.
func TestThePluginIsKilledWithinABurst(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		for _, away := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second, time.Hour} {
			if engine == worker.VLLM && away == time.Hour {
				continue // nothing of the engine is met
			}
			t.Run(fmt.Sprintf("%s back after %v", engine, away), func(t *testing.T) {
				t.Parallel()
				l := layoutOf(layout{prefill: 2, decode: 2, noCheck: true, prefillArgs: []string{"--kv-lease", "5s", "--prefill-base-us", "20000"}}, engine)
				both(t, l, func(t *testing.T, f *fleet) { f.killedWithinABurst(away) })
			})
		}
	}
}

// killedWithinABurst kills the plugin, which is back after a while; after an hour: it is not.
func (f *fleet) killedWithinABurst(away time.Duration) {
	t := f.t
	t.Helper()
	const n = 150
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	replies := make([]*reply, n)
	f.faultAll(f.decode, enginesim.Fault{Mode: enginesim.FaultHold, When: enginesim.Mid}) // else the burst can be over before it is seen
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			replies[i] = f.send(ctx, "/v1/completions", completion(burstPrompt(i), 4, i%2 == 0))
		})
	}
	f.await("the burst to have reached the workers", func() bool { return f.running(f.decode) > 0 })
	require.NoError(t, f.plugin.Kill())
	f.faultAll(f.decode, enginesim.Fault{})
	if away < time.Hour {
		<-time.After(away)
		f.startPlugin()
	}
	wg.Wait()
	require.NoError(t, ctx.Err(), "a request hangs")
	served, refused, cut := 0, 0, 0
	for i, r := range replies {
		switch {
		case r.err != nil && r.status == http.StatusOK:
			cut++
		case r.status == http.StatusOK:
			requireAnswer(t, r, burstPrompt(i), 4)
			served++
		default:
			requireUnavailable(t, r)
			refused++
		}
	}
	t.Logf("of %d %d were served, %d refused, %d cut", n, served, refused, cut)
	require.LessOrEqual(t, cut, 1, "the plugin was killed between a head that it let pass and its leaving of that stream")
	if away < time.Second { // Envoy waits a second or two for it
		require.Zero(t, refused)
	}
	f.settled()
	for _, w := range f.workers {
		s, ok := f.state(w)
		require.True(t, ok)
		require.Empty(t, s.Violations, w.Name)
	}
}

func burstPrompt(i int) string { return fmt.Sprintf("one of a burst, %d", i) }
