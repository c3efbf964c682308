package main

import (
	"io"
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

	saying := func(words string) string { // to whoever comes
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.CopyN(io.Discard, c, 4)
				_, _ = io.WriteString(c, words)
				_ = c.Close()
			}
		}()
		return l.Addr().String()
	}

	for admin, want := range map[string]string{
		serves("envoy"):          "Envoy answers there",
		serves("nginx"):          `another server ("nginx") answers there`,
		serves(""):               "another server answers there",
		l.Addr().String():        "speaks gRPC, as the plugin does at listen",
		closed.Addr().String():   "nothing answers there (connect: connection refused)",
		saying("SSH-2.0-x\r\n"):  "the server there does not speak HTTP",
		saying("-ERR wrong\r\n"): "the server there does not speak HTTP",
		saying(""):               "closes the connection without an answer",
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

func TestExplainSaysWhatIsWrongWithAnAddress(t *testing.T) {
	body := filepath.Join(t.TempDir(), "body.json")
	require.NoError(t, os.WriteFile(body, []byte("{}"), 0o600))
	for admin, want := range map[string]string{
		"https://127.0.0.1:9902":      "the status page speaks only http",
		"unix:///run/x.sock":          "the status page speaks only http",
		"127.0.0.1":                   "expected host:port",
		"9902":                        "expected host:port",
		"":                            "expected host:port",
		"127.0.0.1:99020":             "with a port of 0 to 65535",
		"http://127.0.0.1:9902/debug": "expected http://127.0.0.1:9902 without a path",
	} {
		var stdout, stderr strings.Builder
		require.Equal(t, exitUsage, run(t.Context(), []string{"explain", body, "--admin", admin}, &stdout, &stderr), admin)
		require.Contains(t, stderr.String(), want)
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), stderr.String())
	}
}
