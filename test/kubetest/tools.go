//go:build kube

package kubetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/kubeparts"
	"github.com/seed-60ae5743/baton/test/kubesim"
)

// Kubectl runs kubectl as the cluster's administrator, and returns what it printed. An error
// has what it said.
func Kubectl(t testing.TB, c Cluster, stdin string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, AdminKubeconfig(t, c), 0o600))
	return run(t, stdin, Tool(t, kubeparts.Kube), append([]string{"kubectl", "--kubeconfig", file}, args...)...)
}

// AdminKubeconfig is a file for the cluster's administrator.
func AdminKubeconfig(t testing.TB, c Cluster) []byte {
	t.Helper()
	k, ok := c.(*cluster)
	require.True(t, ok, "%T", c)
	return kubesim.Kubeconfig(k.back.url(), "token: "+adminToken)
}

// Helm runs helm, and returns what it printed.
func Helm(t testing.TB, args ...string) (string, error) {
	t.Helper()
	return run(t, "", Tool(t, kubeparts.Helm), args...)
}

// Tool is where a part of real clusters is.
func Tool(t testing.TB, part func() (string, error)) string {
	t.Helper()
	at, err := part()
	require.NoError(t, err)
	return at
}

func run(t testing.TB, stdin, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), soon)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = []string{"HOME=" + t.TempDir(), "TMPDIR=" + os.TempDir()} // nothing of the user's counts
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(path), strings.Join(args, " "), err, said.String())
	}
	return string(out), err
}
