package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

// TestExplainSaysWhatAnswersInThePluginsPlace: a wrong port is found from the message alone.
func TestExplainSaysWhatAnswersInThePluginsPlace(t *testing.T) {
	body := filepath.Join(t.TempDir(), "body.json")
	require.NoError(t, os.WriteFile(body, []byte(`{"model":"m","messages":[]}`), 0o600))
	serves := func(server string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Server", server)
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(strings.Repeat("<html>", 1000)))
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	plugin := grpc.NewServer()
	go func() { _ = plugin.Serve(l) }()
	t.Cleanup(plugin.Stop)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())

	for admin, want := range map[string]string{
		serves("envoy"):        "Envoy answers there",
		serves("nginx"):        `another server ("nginx") answers there`,
		serves(""):             "another server answers there",
		l.Addr().String():      "speaks gRPC, as the plugin does where Envoy reaches it (listen)",
		closed.Addr().String(): "nothing answers there (connect: connection refused)",
	} {
		var stdout, stderr strings.Builder
		require.Equal(t, exitFault, run(t.Context(), []string{"explain", body, "--admin", admin}, &stdout, &stderr))
		require.Contains(t, stderr.String(), "--admin "+admin+": ")
		require.Contains(t, stderr.String(), want)
		require.Contains(t, stderr.String(), "admin.listen")
		require.NotContains(t, stderr.String(), "<html>")
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), stderr.String())
	}
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
