//go:build e2e

package envoytest

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// TestWorkersThatStandStillLoseNothing: all workers of a role, or of both, stop for a while,
// as under a snapshot of their machine. Their kernels take connections and nobody answers.
// Waiting serves each request, so none is refused.
func TestWorkersThatStandStillLoseNothing(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"all", "prefill", "decode"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			either(t, layout{prefill: 2, decode: 2}, func(t *testing.T, f *fleet) {
				var still []*stack.Worker
				if who != "decode" {
					still = append(still, f.prefill...)
				}
				if who != "prefill" {
					still = append(still, f.decode...)
				}
				f.standStill(10*time.Second, still)
			})
		})
	}
}

// standStill sends eight requests a second, stops the workers for a while in the midst of
// them, and requires that each request is served.
func (f *fleet) standStill(long time.Duration, who []*stack.Worker) {
	f.t.Helper()
	const before, every = 16, time.Second / 8
	over := time.AfterFunc(before*every+long, func() { signalAll(f.t, who, syscall.SIGCONT) })
	defer func() {
		if over.Stop() {
			signalAll(f.t, who, syscall.SIGCONT)
		}
	}()
	f.steady(2*before+int(long/every), every, func(i int) {
		if i == before {
			signalAll(f.t, who, syscall.SIGSTOP)
		}
		prompt := fmt.Sprintf("while they stand still, %d", i)
		requireAnswer(f.t, f.send(f.t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
	})
	f.await("nobody is aside or doubted", func() bool {
		return f.metric("baton_workers", `state="aside"`) == 0 && f.metric("baton_workers", `state="doubted"`) == 0
	})
}

func signalAll(t *testing.T, who []*stack.Worker, s syscall.Signal) {
	for _, w := range who {
		if err := w.Signal(s); err != nil {
			t.Errorf("%s: %v", w.Name, err)
		}
	}
}

// TestALegThatEnvoyTakesLateIsWaitedFor: an Envoy that is short of CPU would take another leg as
// late. The prompt has a mebibyte, which no socket's buffer holds.
func TestALegThatEnvoyTakesLateIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := layoutOf(layout{prefill: 2, decode: 2}, engine)
			l.describe = func(f *fleet) {
				f.config = fmt.Sprintf("prefill: {start_timeout: 100ms, overdue_base: 300ms, listener: %q}\n", "unix://"+filepath.Join(f.dir, gateSocket))
			}
			both(t, l, func(t *testing.T, f *fleet) {
				f.gate = newGate(t, filepath.Join(f.dir, gateSocket), filepath.Join(f.dir, "prefill.sock"))
				open := shut(f)
				prompt := strings.Repeat("late but well ", 1<<20/14)
				answer := make(chan *reply, 1)
				go func() { answer <- f.send(t.Context(), "/v1/completions", completion(prompt, 4, false)) }()
				f.await("its workers to be picked", func() bool { return len(f.decisions()) > 0 })
				f.steady(10, 250*time.Millisecond, func(int) {
					require.Equal(t, http.StatusOK, f.do(http.MethodGet, "/v1/models", nil, nil).status)
				})
				open()
				requireAnswer(t, <-answer, prompt, 4)
				require.Zero(t, f.metric("baton_fresh_picks_total"))
				require.Zero(t, f.setAside())
			})
		})
	}
}

// TestAnEnvoyThatIsShortOfCPULosesNothing: it runs for a quarter of the time, as under a limit of
// its container. All legs are late then, and none is begun anew for that.
func TestAnEnvoyThatIsShortOfCPULosesNothing(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]layout{
		"beside":   layoutOf(layout{prefill: 2, decode: 2}, worker.SGLang),
		"mirrored": layoutOf(layout{prefill: 2, decode: 2, envoy: mirrors}, worker.SGLang),
		"first":    layoutOf(layout{prefill: 2, decode: 2}, worker.VLLM),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, l, func(t *testing.T, f *fleet) {
				end := f.slice(25*time.Millisecond, 75*time.Millisecond)
				const requests = 80
				f.steady(requests, time.Second/10, func(i int) {
					prompt := fmt.Sprintf("Envoy is short of CPU, %d", i)
					requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
				})
				end()
				require.LessOrEqual(t, f.metric("baton_fresh_picks_total"), 0.05*requests)
				require.Zero(t, f.setAside())
				require.Zero(t, f.metric("baton_proxy_clock_off_total"))
			})
		})
	}
}

// slice stops Envoy and lets it go, by turns, until end is called.
func (f *fleet) slice(runs, stands time.Duration) (end func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			for _, turn := range []struct {
				signal syscall.Signal
				d      time.Duration
			}{{syscall.SIGSTOP, stands}, {syscall.SIGCONT, runs}} {
				if err := f.envoy.Signal(turn.signal); err != nil {
					f.t.Errorf("Envoy: %v", err)
				}
				select {
				case <-time.After(turn.d):
				case <-over:
					_ = f.envoy.Signal(syscall.SIGCONT)
					return
				}
			}
		}
	}()
	return func() {
		close(over)
		<-done
	}
}

// TestAPluginThatStoodStillCondemnsNobody: as one whose machine was moved. What its timers and its
// probes say of the time that it has missed is no evidence.
func TestAPluginThatStoodStillCondemnsNobody(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := layoutOf(layout{prefill: 2, decode: 2, config: "prefill: {overdue_base: 1s}\nanswer: {overdue_base: 1s}\n"}, engine)
			l.prefillArgs = append(slices.Clone(shortLease), "--bootstrap-timeout", "3s", "--prefill-base-us", "1500000") // of what nobody fetches any more
			l.decodeArgs = []string{"--decode-us-per-token", "100000"}
			either(t, l, func(t *testing.T, f *fleet) {
				// Envoy says of an answer of eight seconds that it runs: so a broken log ends bookings.
				f.send(t.Context(), "/v1/completions", completion("a long answer", 80, true))
				const before, stands, every = 12, 10 * time.Second, time.Second / 4
				over := time.AfterFunc(before*every+stands, func() { f.signalPlugin(syscall.SIGCONT) })
				defer over.Stop()
				f.steady(before+int(stands/every)+8, every, func(i int) {
					if i == before {
						f.signalPlugin(syscall.SIGSTOP)
					}
					f.send(t.Context(), "/v1/completions", completion(fmt.Sprintf("the plugin stands still, %d", i), 4, i%2 == 0))
				})
				require.Zero(t, f.setAside())
				require.Zero(t, f.metric("baton_workers", `state="doubted"`))
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("it is back", 4, false)), "it is back", 4)
			})
		})
	}
}

func (f *fleet) signalPlugin(s syscall.Signal) {
	if err := f.plugin.Signal(s); err != nil {
		f.t.Errorf("the plugin: %v", err)
	}
}
