//go:build e2e

package envoytest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestEnginesThatPrefillFirstAreServed is row C4: decode gets prefill's hand-off
// in the request's own body, and nothing is held at the end.
func TestEnginesThatPrefillFirstAreServed(t *testing.T) {
	for _, engine := range []worker.Engine{worker.VLLM, worker.TensorRTLLM} {
		t.Run(string(engine), func(t *testing.T) {
			both(t, layout{prefill: 2, decode: 2, simArgs: []string{"--engine", string(engine)}}, func(t *testing.T, f *fleet) {
				for i := range 4 {
					prompt := fmt.Sprintf("the sea is blue %d", i)
					requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 6, i%2 == 1)), prompt, 6)
				}
				require.Len(t, f.gotAll(f.prefill), 4)
				require.Len(t, f.gotAll(f.decode), 4)
			})
		})
	}
}
