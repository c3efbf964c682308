//go:build e2e

package envoytest

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// lateRun is a fleet of two and two whose prompts are computed one after the other.
type lateRun struct {
	engine   worker.Engine
	prefill  time.Duration // for each prompt
	etcd     bool
	requests int // one each second
}

// TestBusyEnginesRefuseNobody: an engine that computes a prompt answers its health page late,
// SGLang's by at least a second. Nothing is broken, so all requests are served, however long
// they have to wait.
func TestBusyEnginesRefuseNobody(t *testing.T) {
	t.Parallel()
	for _, run := range lateRuns {
		source := "file"
		if run.etcd {
			source = "etcd"
		}
		t.Run(fmt.Sprintf("%s %v %s", run.engine, run.prefill, source), func(t *testing.T) {
			t.Parallel()
			slow := []string{"--prefill-base-us", strconv.FormatInt(run.prefill.Microseconds(), 10), "--serial-prefill"}
			var f *fleet
			if run.etcd {
				e := newEtcdFleet(t, false, "")
				e.pods("prefill", 2, append(slow, "--engine", string(run.engine))...)
				e.pods("decode", 2, "--engine", string(run.engine))
				f = e.fleet
			} else {
				f = newFleet(t, layoutOf(layout{prefill: 2, decode: 2, prefillArgs: slow}, run.engine))
			}
			f.steady(run.requests, time.Second, func(i int) {
				prompt := fmt.Sprintf("busy and well, %d", i)
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
			})
			require.Zero(t, f.setAside())
			t.Logf("doubted %v times, fresh attempts %v", f.metric("baton_aside_transitions_total", `to="doubted"`), f.metric("baton_fresh_picks_total"))
		})
	}
}
