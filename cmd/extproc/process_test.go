package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/syncbuf"
)

// start runs the command as a process until the test ends, and returns it with what it prints.
func start(t *testing.T, env []string, args ...string) (*exec.Cmd, *syncbuf.Buffer) {
	t.Helper()
	cmd, out := exec.CommandContext(t.Context(), os.Args[0], args...), new(syncbuf.Buffer)
	cmd.Env = append(append(os.Environ(), asCommand+"=1"), env...)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, out
}

// awaitText waits until the text was printed n times.
func awaitText(t *testing.T, out *syncbuf.Buffer, text string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Count(out.String(), text) >= n }, 30*time.Second, 5*time.Millisecond, "%s in %s", text, out)
}

func serveArgs(t *testing.T, more ...string) []string {
	return append([]string{"serve", "--workers", filepath.Join(t.TempDir(), "none.yaml"), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, more...)
}

// TestSIGHUPEndsNoCommandThatGoesOn: it is said, and SIGTERM ends the process as before.
func TestSIGHUPEndsNoCommandThatGoesOn(t *testing.T) {
	for name, args := range map[string][]string{
		"serve": serveArgs(t), // and epp, which is serve with other flags
		"register": {
			"register", "--engine-url", "http://127.0.0.1:1", "--advertise", "10.0.0.7", "--etcd-endpoints", "127.0.0.1:1", "--admin", "127.0.0.1:0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, out := start(t, nil, args...)
			awaitText(t, out, "admin", 1)
			for n := range 2 {
				require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
				awaitText(t, out, "SIGHUP has no effect", n+1)
			}
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			require.NoError(t, cmd.Wait(), out)
		})
	}
}

// TestAnEnvironmentsPasswordIsNotPrinted: the library for spans reads variables of its own.
func TestAnEnvironmentsPasswordIsNotPrinted(t *testing.T) {
	cmd, out := start(t, []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://user:hunter2%zz@127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://user:hunter2@127.0.0.1 :1",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=hunter2%zz,hunter2", "OTEL_EXPORTER_OTLP_TIMEOUT=hunter2", "OTEL_EXPORTER_OTLP_INSECURE=hunter2",
		"OTEL_EXPORTER_OTLP_CERTIFICATE=/hunter2", "OTEL_BSP_SCHEDULE_DELAY=hunter2",
		"HTTPS_PROXY=http://user:hunter2%zz@127.0.0.1:1",
	}, serveArgs(t, "--trace-endpoint", "127.0.0.1:1")...)
	awaitText(t, out, "admin", 1)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), out)
	require.NotContains(t, out.String(), "hunter2")
}

// TestNoProxyOfTheEnvironmentIsAsked: an admin's address is one of the user's own network.
func TestNoProxyOfTheEnvironmentIsAsked(t *testing.T) {
	body := filepath.Join(t.TempDir(), "body.json")
	require.NoError(t, os.WriteFile(body, []byte(`{"model":"m","messages":[]}`), 0o600))
	for name, args := range map[string][]string{
		"explain": {"explain", "--admin", "0.0.0.0:1", body},
		"check":   {"check", "--envoy", "0.0.0.0:1"},
	} {
		cmd, out := start(t, []string{"HTTP_PROXY=http://127.0.0.1:2"}, args...)
		require.Error(t, cmd.Wait(), name)
		require.Contains(t, out.String(), "connect: connection refused", name)
		require.NotContains(t, out.String(), "proxy", name)
	}
}
