package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAUsersEnvoyFileIsPrintedAsItIs: also what looks like a password in an address. Notes keep none.
func TestAUsersEnvoyFileIsPrintedAsItIs(t *testing.T) {
	const pattern, hook = `"https://localhost:\\d+/.*"`, "https://user:hunter2@hooks.example/x"
	data, err := os.ReadFile("../../internal/envoyfile/testdata/foreign/edge.yaml")
	require.NoError(t, err)
	text := strings.Replace(string(data), "match: {prefix: /site}", "match: {safe_regex: {regex: "+pattern+"}}   # "+hook, 1)
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(text, "timeout: 15s", "timeout: "+hook, 1)), 0o600))
	var out, notes bytes.Buffer
	require.Equal(t, exitOK, run(t.Context(), []string{"envoy", "--cluster", "llm", path}, &out, &notes), notes.String())
	require.Contains(t, out.String(), pattern)
	require.Contains(t, out.String(), hook)
	require.NotContains(t, out.String(), "xxxxx")
	require.Contains(t, notes.String(), "timeout was https://xxxxx@hooks.example/x")
}
