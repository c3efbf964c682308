//go:build e2e && example

package envoytest

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/example"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestAnEngineIsOneRoom: an engine of which the product has its room, its name and a line of a
// list is asked for its facts, and its requests are served apart.
func TestAnEngineIsOneRoom(t *testing.T) {
	t.Parallel()
	servers := map[worker.Role]*example.Server{}
	text := "workers:\n"
	for i, role := range []worker.Role{worker.Prefill, worker.Decode} {
		s := &example.Server{}
		web := httptest.NewServer(s)
		t.Cleanup(web.Close)
		s.Addr = web.Listener.Addr().String()
		servers[role] = s
		text += fmt.Sprintf("  - {id: %d, role: %s, engine: example, endpoint: %q, facts: true}\n", i+1, role, s.Addr)
	}
	l := layout{workers: "example.yaml", noCheck: true, describe: func(f *fleet) {
		require.NoError(t, os.WriteFile(filepath.Join(f.dir, "example.yaml"), []byte(text), 0o600))
	}}
	both(t, l, func(t *testing.T, f *fleet) {
		f.await("the engines to be asked", func() bool { return f.metric("baton_keys", `can_serve="true"`) == 1 })
		for _, c := range []struct {
			member string // of the body
			status int
			says   string
		}{
			{"", 200, `"text":"three two one"`},
			{`,"another":1`, 422, `"fault"`}, // as the engine alone
			{`,"echo":true`, 400, "echo"},
		} {
			r := f.send(t.Context(), "/v1/completions", `{"model":"m","prompt":"one two three","max_tokens":5`+c.member+`}`)
			require.Equal(t, c.status, r.status, r.body)
			require.Contains(t, r.body, c.says)
		}
		f.await("both to have answered, and no KV to be kept", func() bool {
			first, keeps := servers[worker.Prefill].Counts()
			then, _ := servers[worker.Decode].Counts()
			return first > 0 && then > 0 && keeps == 0
		})
	})
}
