//go:build e2e

// Package queryonly runs the example as a newcomer would.
package queryonly

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/stack"
)

func TestTheExampleRunsAsItStands(t *testing.T) {
	root, err := stack.Root()
	require.NoError(t, err)
	envoy, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	ports, err := stack.FreePorts(3)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	script := exec.CommandContext(ctx, filepath.Join(root, "examples", "query-only", "run.sh"))
	script.Env = append(os.Environ(), "ENVOY="+envoy, "REQUESTS=5",
		fmt.Sprintf("CLIENT_PORT=%d", ports[0]), fmt.Sprintf("ENVOY_ADMIN_PORT=%d", ports[1]), fmt.Sprintf("BATON_ADMIN=127.0.0.1:%d", ports[2]))
	script.Cancel = func() error { return script.Process.Signal(syscall.SIGTERM) } // it ends what it has started
	out, err := script.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, 5, strings.Count(string(out), "sent there, served"), "%s", out)
}
