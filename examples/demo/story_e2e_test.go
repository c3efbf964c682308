//go:build e2e

package main

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/stack"
)

func openTestStage(t *testing.T) *stage {
	t.Helper()
	path, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, stack.Build(bin, "invariants", false, "./cmd/extproc", "./cmd/enginesim"))
	// Not t.TempDir: a unix socket's path may not be long.
	dir, err := os.MkdirTemp("", "baton-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	st, err := openStage(t.Context(), stageOptions{binDir: bin, dir: dir, envoy: path, prefill: 2, decode: 2})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(st.logs())
		}
		st.close()
	})
	return st
}

// TestTheStoryIsTrue tells the demo's story once; it checks itself. After that it
// runs the command that -up prints, as it is printed.
func TestTheStoryIsTrue(t *testing.T) {
	st := openTestStage(t)

	var out bytes.Buffer
	err := tell(t.Context(), &screen{w: &out}, st)
	t.Log(out.String())
	require.NoError(t, err)
	require.Contains(t, out.String(), "given up for a fresh pick")
	require.Contains(t, out.String(), "Summary:")
	require.NotContains(t, out.String(), "\x1b")

	text := addresses(&screen{}, st)
	require.Contains(t, text, st.envoy.URL)
	if _, err := exec.LookPath("curl"); err == nil {
		got, err := exec.CommandContext(t.Context(), "sh", "-c", curlExample(st.envoy.URL)).CombinedOutput()
		require.NoError(t, err, "%s", got)
		answer := strings.ToLower(string(got))
		require.Contains(t, answer, " 200 ok")
		require.Contains(t, answer, "x-baton-decision: ")
		require.Contains(t, answer, "data: [done]")
	}
	resp, err := http.Get(st.plugin.Admin + "/")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
}
