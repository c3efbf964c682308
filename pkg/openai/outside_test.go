package openai

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOtherModulesCanUseWhatTakesARequest compiles the examples of these packages in a module
// of their own, where nothing internal is allowed.
func TestOtherModulesCanUseWhatTakesARequest(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	ours, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	const path = "github.com/seed-60ae5743/baton"
	mod := regexp.MustCompile(`(?m)^module .*$`).ReplaceAllString(string(ours), "module example.com/outside")
	mod += "\nrequire " + path + " v0.0.0\nreplace " + path + " => " + root + "\n"
	dir := t.TempDir()
	write := func(file string, content []byte) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), content, 0o600))
	}
	write("go.mod", []byte(mod))
	write("go.sum", sums)
	for _, p := range []string{"tokens", "prefill/handoff"} {
		example, err := os.ReadFile(filepath.Join(root, "pkg", p, "example_test.go"))
		require.NoError(t, err)
		write(filepath.Join(p, "example_test.go"), example)
	}
	cmd := exec.CommandContext(t.Context(), "go", "vet", "-mod=mod", "./...")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
