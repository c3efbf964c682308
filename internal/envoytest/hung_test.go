//go:build e2e

package envoytest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/enginesim"
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
