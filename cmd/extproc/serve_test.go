package main

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAPortThatIsTakenEndsThePluginAtOnce, with exit code 1.
func TestAPortThatIsTakenEndsThePluginAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for _, args := range [][]string{
		{"--listen", l.Addr().String(), "--admin", "127.0.0.1:0"},
		{"--listen", "127.0.0.1:0", "--admin", l.Addr().String()},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitFault, run(t.Context(), append([]string{"serve", "--workers", "none.yaml"}, args...), &stdout, &stderr))
		require.Contains(t, stderr.String(), "address already in use")
	}
}

// TestSIGTERMBeforeAnythingEndsCleanly with exit code 0, and logs as told.
func TestSIGTERMBeforeAnythingEndsCleanly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, []string{
		"serve", "--workers", filepath.Join(t.TempDir(), "none.yaml"), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json",
	}, &stdout, &stderr)
	require.Equal(t, exitOK, code, "%s", &stderr)
	for line := range strings.Lines(stderr.String()) {
		require.True(t, strings.HasPrefix(line, "{"), line)
	}
	require.Contains(t, stderr.String(), `"msg":"drained"`)
}

func TestAnAddressThatIsTakenIsSaidWithItsKey(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	at := taken.Addr().String()
	for _, args := range [][]string{{"--admin", at}, {"--listen", at}} {
		var stderr strings.Builder
		args = append([]string{"serve", "--workers", "workers.yaml", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)
		require.Equal(t, exitFault, run(t.Context(), args, nil, &stderr))
		require.Contains(t, stderr.String(), `"`+at+`": address already in use; choose another address`)
		require.Contains(t, stderr.String(), "("+args[len(args)-2]+")")
	}
}
