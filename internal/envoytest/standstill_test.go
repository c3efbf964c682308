//go:build e2e

package envoytest

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/stack"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestWorkersThatStandStillLoseNothing: all workers of a role, or of both, stop for a while,
// as under a snapshot of their machine. Their kernels take connections and nobody answers.
// Waiting serves each request, so none is refused.
func TestWorkersThatStandStillLoseNothing(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"all", "prefill", "decode"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			both(t, layout{prefill: 2, decode: 2}, func(t *testing.T, f *fleet) {
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
