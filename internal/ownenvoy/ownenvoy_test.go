package ownenvoy_test

import (
	"bytes"
	"errors"
	"flag"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/ownenvoy"
)

// run is the command: the flags of the plugin and its own.
func run(args ...string) (stdout, stderr string, err error) {
	var out, notes bytes.Buffer
	fs := flag.NewFlagSet("envoy", flag.ContinueOnError)
	fs.SetOutput(&notes)
	given := config.FlagsWithoutWorkers(fs, func() bool { return true })
	asked := ownenvoy.Flags(fs)
	if err := config.ParseFlags(fs, args, 1); err != nil {
		return "", "", err
	}
	c, err := given()
	o, wrong := asked(fs.Arg(0))
	if err := errors.Join(err, wrong); err != nil {
		return "", "", err
	}
	err = ownenvoy.Write(&c, o, &out, &notes)
	return out.String(), notes.String(), err
}

// check is `extproc check --envoy`, with flags of the plugin.
func check(at string, args ...string) (string, error) {
	var out bytes.Buffer
	fs := flag.NewFlagSet("check", flag.ContinueOnError)
	given := config.FlagsWithoutWorkers(fs, func() bool { return true })
	if err := config.ParseFlags(fs, args, 0); err != nil {
		return "", err
	}
	c, err := given()
	if err != nil {
		return "", err
	}
	err = ownenvoy.Check(&c, at, &out)
	return out.String(), err
}

func example(t *testing.T, name string) (path, body string) {
	t.Helper()
	path = filepath.Join("..", "..", name)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return path, string(b)
}

// withKey is a configuration whose key is there.
func withKey(t *testing.T, name string) string {
	t.Helper()
	_, body := example(t, name)
	dir := t.TempDir()
	key := filepath.Join(dir, "leg.key")
	require.NoError(t, os.WriteFile(key, []byte("a key that both have, and nobody else"), 0o600))
	path := filepath.Join(dir, filepath.Base(name))
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(body, "/etc/baton/leg.key", key)), 0o600))
	return path
}

// below is a configuration without its first comment, which says what it is.
func below(text string) string { return text[strings.Index(text, "\nadmin:"):] }

func TestThePluginsConfigurationGivesTheShippedFile(t *testing.T) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{"envoy/standalone.yaml", nil},
		{"envoy/standalone-full-duplex.yaml", []string{"--full-duplex"}},
		{"envoy/standalone-tracing.yaml", []string{"--tracing", "127.0.0.1:4317"}},
		{"examples/standalone/two/envoy.yaml", []string{"--config", withKey(t, "examples/standalone/two/list.yaml")}},
		{"examples/standalone/two/envoy.yaml", []string{"--config", withKey(t, "examples/standalone/two/etcd.yaml"), "--replica", "127.0.0.1:9012"}},
	} {
		t.Run(c.want, func(t *testing.T) {
			path, want := example(t, c.want)
			out, _, err := run(c.args...)
			require.NoError(t, err)
			require.Equal(t, below(want), below(out))
			if c.args == nil {
				said, err := check(path)
				require.NoError(t, err)
				require.Equal(t, path+" has all that Baton needs.\n", said)
			}
		})
	}
}

func TestWhatIsWrongIsSaidAtOnce(t *testing.T) {
	_, _, err := run("--tracing", "here", "--write", "--listen", "unix:///x", "--replica", "host:1")
	require.EqualError(t, err, "--tracing \"here\": expected host:port\nexpected --write, --client-listener and --cluster with FILE, and --parts without")
	_, _, err = run("--cluster", "llm")
	require.ErrorContains(t, err, "--cluster with FILE")
	_, _, err = run("--listen", "unix:///run/x.sock", "--replica", "other:1")
	require.EqualError(t, err, "replica other:1: Envoy's file needs the address in place of the name \"other\"\n"+
		"listen unix:///run/x.sock: with other replicas expected host:port: they cannot call each other at a socket")
	_, _, err = run("--listen", "localhost:9002", "--tracing", "collector:70000")
	require.EqualError(t, err, "--tracing \"collector:70000\": expected host:port")
	_, _, err = run("--listen", "localhost:9002", "--replica", "127.0.0.1:9012")
	require.EqualError(t, err, "listen localhost:9002: Envoy's file needs the address in place of the name \"localhost\"")
	_, err = check("no-such-file.yaml", "--listen", "localhost:9002")
	require.ErrorIs(t, err, config.ErrUsage)
	require.ErrorContains(t, err, "in place of the name")
	_, _, err = run("no-such-file.yaml")
	require.EqualError(t, err, "open no-such-file.yaml: no such file or directory")
	require.ErrorIs(t, err, config.ErrUsage)
}

// TestAFileIsWrittenWhole: and checked with what is served beside it.
func TestAFileIsWrittenWhole(t *testing.T) {
	_, shipped := example(t, "internal/envoyfile/testdata/foreign/edge.yaml")
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(shipped), 0o600))
	_, notes, err := run("--write", "--cluster", "llm", path)
	require.NoError(t, err)
	require.Contains(t, notes, "envoy.yaml:24: timeout was 15s, and is 0s now")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode(), "it may hold secrets")
	said, err := check(path)
	require.NoError(t, err)
	require.Contains(t, said, "has all that Baton needs; ")
	said, err = check(path, "--listen", "unix:///elsewhere/extproc.sock")
	require.Error(t, err)
	require.Contains(t, said, "pipe/path is /run/baton/extproc.sock: expected /elsewhere/extproc.sock")

	folder := filepath.Join(t.TempDir(), "parts")
	_, notes, err = run("--parts", folder)
	require.NoError(t, err)
	require.Contains(t, notes, "add bootstrap.yaml to Envoy's bootstrap file")
	boot := filepath.Join(t.TempDir(), "boot.yaml")
	require.NoError(t, os.WriteFile(boot, []byte("dynamic_resources:\n  lds_config: {path_config_source: {path: "+filepath.Join(folder, "lds.yaml")+"}}\n  cds_config: {path_config_source: {path: "+filepath.Join(folder, "cds.yaml")+"}}\n"), 0o600))
	said, err = check(boot)
	require.Error(t, err)
	require.Contains(t, said, "route: cluster: main_leg")
	require.NotContains(t, said, "main_leg: main_leg")
}

// TestAnAddressOfIPv6AndACollectorsName: stand in the file as Envoy reads them, and as the check does.
func TestAnAddressOfIPv6AndACollectorsName(t *testing.T) {
	path, _ := example(t, "internal/envoyfile/testdata/foreign/edge.yaml")
	plugin := []string{"--listen", "[::1]:9002"}
	out, _, err := run(append(plugin, "--replica", "[::1]:9012", "--tracing", "collector.prod:4317", "--cluster", "llm", path)...)
	require.NoError(t, err)
	require.Contains(t, out, `address: "::1", port_value: 9012`)
	require.Contains(t, out, "- name: otel_collector\n    type: STRICT_DNS\n")
	merged := filepath.Join(t.TempDir(), "envoy.yaml")
	require.NoError(t, os.WriteFile(merged, []byte(out), 0o600))
	said, err := check(merged, plugin...)
	require.NoError(t, err, said)
}

// TestTLSOfThePluginNeedsATransportSocket: which the user adds, and a merge keeps.
func TestTLSOfThePluginNeedsATransportSocket(t *testing.T) {
	_, shipped := example(t, "internal/envoyfile/testdata/foreign/edge.yaml")
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(shipped), 0o600))
	conf := filepath.Join(t.TempDir(), "baton.yaml")
	require.NoError(t, os.WriteFile(conf, []byte("listen: 127.0.0.1:9002\ntls: {self_signed: true}\nprefill: {listener: \"unix:///run/baton/legs.sock\"}\n"), 0o600))
	const note = "the plugin's configuration has tls: give the cluster extproc a transport_socket"
	_, notes, err := run("--config", conf, "--cluster", "llm", "--write", path)
	require.NoError(t, err)
	require.Contains(t, notes, note)
	said, err := check(path, "--config", conf)
	require.Error(t, err)
	require.Contains(t, said, "cluster/extproc/transport_socket is missing: TLS, since the plugin's configuration has tls")

	merged, err := os.ReadFile(path)
	require.NoError(t, err)
	tls := "    transport_socket: {name: envoy.transport_sockets.tls}\n"
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(merged), "  - name: extproc\n", "  - name: extproc\n"+tls, 1)), 0o600))
	out, notes, err := run("--config", conf, path)
	require.NoError(t, err)
	require.Empty(t, notes)
	require.Equal(t, 1, strings.Count(out, tls))
	said, err = check(path, "--config", conf)
	require.NoError(t, err, said)

	_, notes, err = run("--config", conf)
	require.NoError(t, err)
	require.Contains(t, notes, note)
}

func TestARunningEnvoyIsAsked(t *testing.T) {
	dump := `{"configs": [{"bootstrap": {}}, {"static_listeners": [{"listener": {"name": "x", "address": {"pipe": {"path": "/x"}}}}]}]}`
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/config_dump" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(dump))
	}
	web := httptest.NewServer(http.HandlerFunc(answer))
	defer web.Close()
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	socket := &http.Server{Handler: http.HandlerFunc(answer)} //nolint:gosec // of a test
	go func() { _ = socket.Serve(l) }()
	defer socket.Close()
	for _, at := range []string{web.URL, strings.TrimPrefix(web.URL, "http://"), path, "unix://" + path} {
		said, err := check(at)
		require.ErrorContains(t, err, "lacks what is named above")
		require.Contains(t, said, "main_leg: main_leg, an internal listener")
	}
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	_, err = check(other.URL)
	require.ErrorContains(t, err, "answers 404 Not Found: expected Envoy's admin there")
	_, err = check("127.0.0.1:1")
	require.ErrorContains(t, err, "expected Envoy's admin there")
	_, err = check("nothing.yaml")
	require.ErrorContains(t, err, "expected a file, or the address of Envoy's admin: host:port or a socket's path")
}
