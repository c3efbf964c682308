//go:build e2e

package envoytest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestARequestIsServedByAPair is the main job: docs/behaviour.md#both-at-once,
// #one-token, #room and #injected.
func TestARequestIsServedByAPair(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 2}, func(t *testing.T, f *fleet) {
		for i := range 6 {
			prompt := fmt.Sprintf("request %d says hello to the world", i)
			r := f.send(t.Context(), "/v1/completions", completion(prompt, 12, i%2 == 0), "x-debug-decision", "1")
			requireAnswer(t, r, prompt, 12)
			t.Log(r.took, r.first, r.header.Get("x-baton-decision"))
			for name := range r.header {
				require.False(t, strings.HasPrefix(strings.ToLower(name), "x-envoy"), name)
			}
		}
	})
}
