//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bookedRun is a fleet of an engine whose workers are asked what they run, or not, and
// whose answers say how long they were, or not. What else tells are the KV events of vLLM.
type bookedRun struct {
	engine         string
	reports, usage bool
}

// TestWhatIsBookedIsWhatWorkersHold: 2 prefill and 4 decode workers with answers of 3 to
// 30 seconds. Over three minutes, second by second, the KV blocks that the plugin takes the
// decode workers to hold are at most 15 % off those that they do. Without the tag long it
// is the first forty seconds, five times as fast in all that workers and plugin do, and on a busy
// machine 25 %.
func TestWhatIsBookedIsWhatWorkersHold(t *testing.T) {
	t.Parallel()
	for _, run := range append(bookedRight, bookedBesides...) {
		t.Run(fmt.Sprintf("%s, reports %t, usage %t", run.engine, run.reports, run.usage), func(t *testing.T) {
			t.Parallel()
			interval := time.Duration(0)
			if run.reports {
				interval = 2 * bookedTick
			}
			f := newFleet(t, layout{
				prefill: 2, decode: 4, fullDuplex: true,
				config: fmt.Sprintf("engines: {report_interval: %s}\n", interval),
				simArgs: []string{
					"--engine", run.engine, "--page-size", "4", "--stream-interval", "4",
					"--decode-us-per-token", fmt.Sprint(bookedTick.Microseconds() / 30),
				},
			})
			ctx, cancel := context.WithCancel(t.Context())
			var clients sync.WaitGroup
			// What is expected before an answer has been heard of is not five times as fast.
			for i := range 8 {
				clients.Go(func() { f.send(ctx, "/v1/completions", run.ask(fmt.Sprintf("first %d", i), 60)) })
			}
			clients.Wait()
			for c := range 32 {
				clients.Go(func() {
					rng := rand.New(rand.NewPCG(1, uint64(c)))
					for i := 0; ctx.Err() == nil; i++ {
						prompt := strings.Repeat(fmt.Sprintf("client %d asks %d ", c, i), 1+rng.IntN(8))
						tokens := int(100 * math.Exp(rng.Float64()*math.Log(9))) // 3 to 30 s
						if r := f.send(ctx, "/v1/completions", run.ask(prompt, tokens)); ctx.Err() == nil && (r.err != nil || r.status != http.StatusOK) {
							t.Errorf("%v %d %s", r.err, r.status, r.body)
						}
					}
				})
			}
			off, samples, held := f.strayed(bookedTicks)
			cancel()
			clients.Wait()
			t.Logf("what is booked is %.1f %% off in the mean of %d samples, of %.0f blocks a worker", 100*off, samples, held)
			if slices.Contains(bookedRight, run) {
				require.LessOrEqual(t, off, bookedOff)
			}
		})
	}
}

// strayed compares, second by second, the blocks that the plugin takes each decode worker
// to hold with those that it does: the mean of the shares by which they differ.
func (f *fleet) strayed(seconds int) (off float64, samples int, held float64) {
	f.t.Helper()
	tick := time.NewTicker(bookedTick)
	defer tick.Stop()
	for range seconds {
		<-tick.C
		before := f.used()
		m, err := f.plugin.Metrics(f.ctx)
		require.NoError(f.t, err)
		after := f.used()
		for i, w := range f.decode {
			booked, found := m.Sum("baton_worker_decoding_blocks", fmt.Sprintf(`worker_id="%s"`, w.Info.ID))
			require.True(f.t, found)
			if own := (before[i] + after[i]) / 2; own > 0 || booked > 0 {
				off += math.Abs(booked-own) / max(own, booked)
				held += own
				samples++
			}
		}
	}
	require.NotZero(f.t, samples)
	return off / float64(samples), samples, held / float64(samples)
}

// ask is a streamed completion, whose answer says how many tokens it has if it is asked to.
func (x bookedRun) ask(prompt string, tokens int) string {
	return fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":%d,"stream":true,"stream_options":{"include_usage":%t}}`, prompt, tokens, x.usage)
}

// used is how many blocks each decode worker's requests hold.
func (f *fleet) used() (out []float64) {
	f.t.Helper()
	for _, w := range f.decode {
		s, err := w.Sim.State(f.ctx, false)
		require.NoError(f.t, err)
		out = append(out, float64(s.Ranks[0].UsedBlocks))
	}
	return out
}

// TestWhatOthersSendAWorkerIsSeen: load that did not come through this plugin counts as
// soon as the worker has said that it runs it.
func TestWhatOthersSendAWorkerIsSeen(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"vllm", "sglang"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, layout{
				aggregated: 2, fullDuplex: true, config: "engines: {report_interval: 100ms}\n",
				simArgs: []string{"--engine", engine, "--decode-us-per-token", "10000"},
			})
			busy, idle := f.workers[0], f.workers[1]
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var elsewhere sync.WaitGroup
			elsewhere.Go(func() {
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+busy.Info.Endpoint.String()+"/v1/completions",
					strings.NewReader(completion(strings.Repeat("from elsewhere ", 200), 5000, false)))
				req.Header.Set("Content-Type", "application/json")
				if res, err := client.Do(req); err == nil {
					_ = res.Body.Close()
				}
			})
			f.await("the plugin to know what the worker runs", func() bool {
				return f.metric("baton_worker_decoding_blocks", fmt.Sprintf(`worker_id="%s"`, busy.Info.ID)) > 30
			})
			before, _ := f.state(idle)
			for i := range 8 {
				prompt := fmt.Sprintf("one of few %d", i)
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 2, false)), prompt, 2)
			}
			after, ok := f.state(idle)
			require.True(t, ok)
			require.EqualValues(t, 8, after.OK-before.OK, "all go to the one that is idle")
			cancel()
			elsewhere.Wait()
			f.await("it to be forgotten once it has ended", func() bool {
				return f.metric("baton_worker_decoding_blocks") == 0
			})
		})
	}
}
