//go:build e2e

package main

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/stack"
)

func buildParts(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	require.NoError(t, stack.Build(bin, "invariants", false, "./cmd/extproc", "./test/cmd/enginesim", "./test/cmd/devetcd"))
	return bin
}

// openTestStage opens a stage over the etcd, or over one of its own.
func openTestStage(t *testing.T, bin string, etcd []string) *stage {
	t.Helper()
	path, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	// Not t.TempDir: a unix socket's path may not be long.
	dir, err := os.MkdirTemp("", "baton-") //nolint:usetesting // its paths are too long
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	st, err := openStage(t.Context(), stageOptions{binDir: bin, dir: dir, envoy: path, etcd: etcd, prefill: 2, decode: 2})
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
	t.Parallel()
	st := openTestStage(t, buildParts(t), nil)

	var out bytes.Buffer
	err := tell(t.Context(), &screen{w: &out}, st)
	t.Log(out.String())
	require.NoError(t, err)
	require.Contains(t, out.String(), "given up for a fresh attempt")
	require.Contains(t, out.String(), ": 503 no_decode_worker, retry-after 1: ")
	require.Contains(t, out.String(), "Dan had his first token, from prefill ")
	require.Contains(t, out.String(), "Summary:")
	require.NotContains(t, out.String(), "advertised", "what register warns of does not belong here")
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

// TestTwoRunsOverOneEtcdDoNotMeet opens the stack twice over an etcd that
// neither of them has started.
func TestTwoRunsOverOneEtcdDoNotMeet(t *testing.T) {
	t.Parallel()
	bin := buildParts(t)
	etcd, err := stack.StartEtcd(t.Context(), stack.EtcdOptions{BinDir: bin, Dir: filepath.Join(t.TempDir(), "etcd")})
	require.NoError(t, err)
	t.Cleanup(func() { _ = etcd.Kill() })
	for range 2 { // the second, while the first runs, waits for exactly its own workers
		st := openTestStage(t, bin, etcd.Endpoints)
		require.Nil(t, st.etcd)
		_, err := ask(t.Context(), st.envoy.URL, "one", []message{{"user", knock}}, answerTokens)
		require.NoError(t, err)
		require.Contains(t, addresses(&screen{}, st), "(yours, below "+st.prefix+")")
	}
}
