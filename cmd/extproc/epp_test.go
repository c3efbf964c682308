package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/seed-60ae5743/baton/internal/syncbuf"
)

// TestAReferencePickersImageIsSwapped starts with the arguments of lwepp's
// conformance deployment, but for the ports, and our workers.
func TestAReferencePickersImageIsSwapped(t *testing.T) {
	workers := filepath.Join(t.TempDir(), "workers.yaml")
	require.NoError(t, os.WriteFile(workers, []byte("workers: []\n"), 0o600))
	const scheduler = `{"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig",
		"plugins": [{"type": "queue-scorer"}, {"type": "no-hit-lru-scorer"}, {"type": "of-our-own-scorer"}]}`
	ctx, stop := context.WithCancel(t.Context())
	var log syncbuf.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{
			"--pool-name", "primary", "--pool-namespace", "infra", "--zap-encoder", "json", "--grpc-port", "0", "--grpc-health-port", "0",
			"--metrics-port", "0", "--workers", workers, "--admin", "127.0.0.1:0", "--config-text", scheduler,
		}, &syncbuf.Buffer{}, &log)
	}()
	t.Cleanup(stop)
	said := func(msg string) (out []map[string]any) {
		for line := range strings.Lines(log.String()) {
			var m map[string]any
			if json.Unmarshal([]byte(line), &m) == nil && m["msg"] == msg {
				out = append(out, m)
			}
		}
		return out
	}
	require.Eventually(t, func() bool { return len(said("ready")) == 1 }, 30*time.Second, 5*time.Millisecond, "%s", log.String())
	at := said("baton listens")[0]
	require.Equal(t, true, at["tls"])
	onPort := func(key string) string {
		address := at[key].(string)
		return "127.0.0.1" + address[strings.LastIndexByte(address, ':'):]
	}
	// As Envoy calls a picker: encrypted, and without verifying whom.
	main := dialGRPC(t, onPort("listen"), credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}))
	probe := dialGRPC(t, onPort("probes"), nil)
	for _, service := range []string{"", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"} {
		require.Equal(t, healthv1.HealthCheckResponse_SERVING, checkHealth(t, main, service), service)
		require.Equal(t, healthv1.HealthCheckResponse_SERVING, checkHealth(t, probe, service), service)
	}
	require.Contains(t, at["metrics"], "/metrics")
	var flags []any
	for _, m := range said("this flag has no effect here") {
		flags = append(flags, m["flag"])
	}
	require.Equal(t, []any{"--pool-name", "--pool-namespace", "--metrics-endpoint-auth", "--config-text"}, flags)
	require.Eventually(t, func() bool {
		resp, err := http.Get(at["admin"].(string) + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		page, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(page), `baton_trouble{kind="config_ignored"} 1`)
	}, 20*time.Second, 50*time.Millisecond, "whose metrics are open, though the reference checks who reads them")
	for path, want := range map[string][]string{
		"/metrics":     {`baton_scheduler_ignored{part="no-hit-lru-scorer"} 1`, `baton_scheduler_ignored{part="of-our-own-scorer"} 1`, `baton_trouble{kind="scheduler_ignored"} 2`},
		"/debug/state": {"--config-text: no-hit-lru-scorer has no counterpart", "In its place: a prompt of which nothing is cached goes by load"},
		"/":            {"of-our-own-scorer has no counterpart"},
	} {
		resp, err := http.Get(at["admin"].(string) + path)
		require.NoError(t, err)
		page, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		for _, text := range want {
			require.Contains(t, string(page), text, path)
		}
	}
	stop()
	require.Equal(t, exitOK, <-ended, "%s", log.String())
}

// The word may be left out before a flag, as a reference picker's image is called.
func TestAFlagInPlaceOfTheCommandIsTheEndpointPickers(t *testing.T) {
	for _, args := range [][]string{{"epp", "--help"}, {"--pool-name", "x", "-h"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitOK, run(t.Context(), args, &stdout, &stderr))
		require.Empty(t, stdout.String())
		require.Contains(t, stderr.String(), "Flags of extproc epp:\n")
		require.Contains(t, stderr.String(), "  -pool-name ")
	}
}
