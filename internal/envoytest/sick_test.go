//go:build e2e

package envoytest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/enginesim"
	"github.com/seed-60ae5743/baton/internal/stack"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestAWorkerThatFailsFromTheStartCostsFewRequests: one of two fails each request at once, and so
// is always the one with the least load.
func TestAWorkerThatFailsFromTheStartCostsFewRequests(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		for name, c := range map[string]struct {
			sick  func(f *fleet) *stack.Worker
			fault enginesim.Fault
		}{
			"decode 404":  {func(f *fleet) *stack.Worker { return f.decode[0] }, saying(404)},
			"decode 401":  {func(f *fleet) *stack.Worker { return f.decode[0] }, saying(401)},
			"prefill 404": {func(f *fleet) *stack.Worker { return f.prefill[0] }, saying(404)},
			"reset":       {func(f *fleet) *stack.Worker { return f.decode[0] }, enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.After}},
			"broken off":  {func(f *fleet) *stack.Worker { return f.decode[0] }, enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Mid}},
		} {
			t.Run(fmt.Sprintf("%s %s", engine, name), func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, layoutOf(layout{prefill: 2, decode: 2, prefillArgs: []string{"--bootstrap-timeout", "3s", "--kv-lease", "2s"}}, engine))
				f.fault(c.sick(f), c.fault)
				var lost atomic.Int64
				f.steady(80, time.Second/8, func(i int) {
					prompt := fmt.Sprintf("one fails, %d", i)
					r := f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0))
					if r.err != nil || strings.TrimSpace(r.text()) != strings.TrimSpace(enginesim.Answer(enginesim.Tokenize(prompt), 4)) {
						lost.Add(1)
					}
				})
				t.Logf("lost %d of 80, fresh attempts %v", lost.Load(), f.metric("baton_fresh_picks_total"))
				require.LessOrEqual(t, lost.Load(), int64(4))
			})
		}
	}
}
