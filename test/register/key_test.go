package register_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/register/registertest"
	"github.com/seed-60ae5743/baton/internal/syncbuf"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestAnEngineThatAsksForAKeyIsAnnouncedOnceItIsShownTheRightOne: without one, and with a
// wrong one, one message says what is missing; a key that is written into the file while
// the register runs is taken.
func TestAnEngineThatAsksForAKeyIsAnnouncedOnceItIsShownTheRightOne(t *testing.T) {
	for _, kind := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(kind), func(t *testing.T) {
			sim, _ := startSim(t, enginesim.Config{Role: worker.Prefill, Engine: kind, APIKey: "sesame"})
			path := map[worker.Engine]string{worker.SGLang: "/server_info", worker.VLLM: "/v1/models"}[kind]

			var bare syncbuf.Buffer
			c := registertest.Quick(sim.URL())
			c.Override.Role, c.Logger = worker.Prefill, slog.New(slog.NewTextHandler(&bare, nil))
			r, _ := registertest.StartRunner(t, c, &registertest.Registry{})
			const missing = "the engine asks for an API key: expected --engine-api-key-file: "
			eventually(t, func() bool { return strings.Contains(bare.String(), missing+path+": status 401") }, "said")
			require.False(t, r.Ready())
			r.Hurry()
			require.Equal(t, 1, strings.Count(bare.String(), missing), "once")
			require.NotContains(t, bare.String(), "tried SGLang")

			var said syncbuf.Buffer
			c.Engine.APIKeyFile = filepath.Join(t.TempDir(), "key")
			require.NoError(t, os.WriteFile(c.Engine.APIKeyFile, []byte("first-key\n"), 0o600))
			c.Logger = slog.New(slog.NewTextHandler(&said, nil))
			r, _ = registertest.StartRunner(t, c, &registertest.Registry{})
			wrong := "the engine refuses the API key of " + c.Engine.APIKeyFile
			eventually(t, func() bool { return strings.Contains(said.String(), wrong) }, "said")
			require.False(t, r.Ready())
			require.NoError(t, os.WriteFile(c.Engine.APIKeyFile, []byte("sesame\n"), 0o600))
			eventually(t, r.Ready, "the new key is shown")
			require.Equal(t, 1, strings.Count(said.String(), wrong), "once")
			require.NotContains(t, said.String(), "first-key")
			require.NotContains(t, said.String(), "sesame")
		})
	}
}
