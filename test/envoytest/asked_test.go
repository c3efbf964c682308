//go:build e2e

package envoytest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// bareFile is the file of workers that gives their ids and addresses, and of engines that
// do not say their role, the role.
const bareFile = "bare.yaml"

func describeBare(f *fleet) {
	text := "workers:\n"
	for _, w := range f.workers {
		text += fmt.Sprintf("  - {id: %d, endpoint: %q, facts: true", w.Info.ID, w.Info.Endpoint)
		if w.Info.Engine != worker.SGLang {
			text += ", role: " + w.Info.Role.String()
		}
		text += "}\n"
	}
	require.NoError(f.t, os.WriteFile(filepath.Join(f.dir, bareFile), []byte(text), 0o600))
}

// TestWorkersOfWhichOnlyTheAddressIsListedServeApart: the plugin learns from the engines
// what they are, hands KV over between them, and finds what they hold by their events.
func TestWorkersOfWhichOnlyTheAddressIsListedServeApart(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := layoutOf(layout{prefill: 2, decode: 1, config: toldOnly, workers: bareFile, describe: describeBare}, engine)
			both(t, l, func(t *testing.T, f *fleet) {
				// An answer is in the metrics before it is in the view.
				f.await("the facts of all to be in the view", func() bool {
					known := 0
					for _, w := range look(t, f.plugin).Workers {
						known += len(w.Models)
					}
					return known == len(f.workers)
				})
				prompt := words(3, 16*5+4)
				body := fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":2}`, prompt)
				for _, cached := range []int{0, 16 * 5} {
					f.forget()
					requireAnswer(t, f.send(t.Context(), "/v1/completions", body), prompt, 2)
					prefill, _ := f.legs()
					require.Equal(t, cached, prefill.CachedTokens)
					require.Equal(t, cached, 16*f.decisions()[0].Prefill.Overlap)
					f.awaitTold()
				}
				require.Zero(t, f.metric("baton_discovery_problems"), strings.TrimSpace(f.plugin.Log()))
			})
		})
	}
}
