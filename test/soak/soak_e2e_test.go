//go:build e2e && long

package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAShortSoakPasses is the command itself, with a fixed seed.
func TestAShortSoakPasses(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"-seed", "3", "-for", "15s", "-every", "500ms", "-slack", "5s"}, os.Getenv("ENVOY"), &out, &errs)
	require.Equal(t, exitPass, code, "%s%s", out.String(), errs.String())
	require.Contains(t, out.String(), "PASS  seed 3")
	t.Log(out.String())
}
