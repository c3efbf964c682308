package config

import (
	"bytes"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/extproc"
)

// TestTheTableOfFlagsIsTheOneThatIsParsed compares docs/gateway-api.md with it.
func TestTheTableOfFlagsIsTheOneThatIsParsed(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "gateway-api.md"))
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(page), "\n## Flags\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	var rows, want []string
	for line := range strings.SplitSeq(section, "\n") {
		if strings.HasPrefix(line, "| `--") {
			rows = append(rows, line)
		}
	}
	seen := map[string]bool{}
	for _, f := range eppFlags() {
		require.False(t, seen[f.name], f.name)
		seen[f.name] = true
		require.Equal(t, f.fate == eppSets, f.set != nil, f.name)
		require.NotEmpty(t, f.text, f.name)
		if f.def != "" {
			require.NoError(t, f.form.check(f.def), f.name)
		}
		def := f.def
		if def == "" {
			def = `""`
		}
		want = append(want, "| `--"+f.name+"` | `"+def+"` | "+f.outcome()+" |")
	}
	require.Equal(t, want, rows)
}

func TestHelpSaysWhatBecomesOfEachFlag(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"--pool-name", "x", "-h"}} {
		var stderr bytes.Buffer
		_, _, err := EPP(NewFlagSet("epp", "", &stderr), args)
		require.ErrorIs(t, err, flag.ErrHelp)
		for _, f := range eppFlags() {
			require.Contains(t, stderr.String(), "  -"+f.name, f.name)
			require.Contains(t, stderr.String(), plain(f.outcome()), f.name)
		}
		for _, ours := range []string{"baton-config", "workers", "etcd-endpoints", "discovery-cache", "admin"} {
			require.Contains(t, stderr.String(), "  -"+ours+" ")
		}
		require.NotContains(t, stderr.String(), "  -config ")
	}
}

// readEPP reads a command line, with workers unless it names them.
func readEPP(t *testing.T, args ...string) (Config, []Note) {
	t.Helper()
	fs := NewFlagSet("epp", "", t.Output())
	c, notes, err := EPP(fs, append([]string{"--workers", "workers.yaml"}, args...))
	require.NoError(t, err)
	return c, notes
}

func TestTheReferencesFlagsSetWhatTheySay(t *testing.T) {
	certs := t.TempDir()
	for _, name := range []string{"tls.crt", "tls.key"} {
		require.NoError(t, os.WriteFile(filepath.Join(certs, name), nil, 0o600))
	}
	for name, x := range map[string]struct {
		args []string
		want func(*Config)
	}{
		"nothing":                   {nil, func(*Config) {}},
		"the ports":                 {[]string{"--grpc-port", "1", "--grpc-health-port=2", "-metrics-port", "3"}, func(c *Config) { c.Listen, c.Probes.Listen, c.Metrics.Listen = ":1", ":2", ":3" }},
		"the drain":                 {[]string{"--drain-timeout", "7s"}, func(c *Config) { c.DrainTimeout = 7 * time.Second }},
		"no TLS":                    {[]string{"--secure-serving=false"}, func(c *Config) { c.TLS.SelfSigned = false }},
		"no TLS in spite of a path": {[]string{"--secure-serving=false", "--cert-path", "/c"}, func(c *Config) { c.TLS.SelfSigned = false }},
		"TLS, said":                 {[]string{"--secure-serving"}, func(*Config) {}},
		"a certificate":             {[]string{"--cert-path", certs, "--enable-cert-reload"}, func(c *Config) { c.TLS.Cert, c.TLS.Key = certs+"/tls.crt", certs+"/tls.key" }},
		"an empty path":             {[]string{"--cert-path", "", "--enable-cert-reload=false"}, func(*Config) {}},
		"a handshake": {[]string{"--tls-min-version", "VersionTLS13", "--tls-cipher-suites", "TLS_AES_128_GCM_SHA256, TLS_AES_256_GCM_SHA384"}, func(c *Config) {
			c.TLS.MinVersion, c.TLS.CipherSuites = "VersionTLS13", []string{"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"}
		}},
		"a little verbose":            {[]string{"--v", "3"}, func(*Config) {}},
		"verbose":                     {[]string{"-v", "4"}, func(c *Config) { c.Log.Level = "debug" }},
		"verbose, glued":              {[]string{"-v5"}, func(c *Config) { c.Log.Level = "debug" }},
		"zap's level beats v":         {[]string{"--zap-log-level", "error", "--v=5"}, func(c *Config) { c.Log.Level = "error" }},
		"zap's level is a number":     {[]string{"--zap-log-level=5"}, func(c *Config) { c.Log.Level = "debug" }},
		"zap's level is panic":        {[]string{"--zap-log-level=panic"}, func(c *Config) { c.Log.Level = "error" }},
		"our level beats zap's":       {[]string{"--log-level", "warn", "--zap-log-level=debug"}, func(c *Config) { c.Log.Level = "warn" }},
		"a JSON log":                  {[]string{"--zap-encoder", "json"}, func(c *Config) { c.Log.Format = "json" }},
		"a log for people":            {[]string{"--zap-encoder=console"}, func(*Config) {}},
		"tracing where nobody is":     {[]string{"--tracing"}, func(*Config) {}},
		"profiles":                    {[]string{"--enable-pprof"}, func(c *Config) { c.Admin.Pprof = true }},
		"what is refused, not asked":  {[]string{"--config-file=", "--disable-endpoint-subset-filter=false"}, func(*Config) {}},
		"our own listen beats theirs": {[]string{"--grpc-port", "1", "--listen", "unix:///x"}, func(c *Config) { c.Listen = "unix:///x" }},
	} {
		t.Run(name, func(t *testing.T) {
			want := Default()
			want.Discovery.File = "workers.yaml"
			want.Listen, want.Probes.Listen, want.Metrics.Listen = ":9002", ":9003", ":9090"
			want.TLS.SelfSigned, want.Gateway.Enabled, want.InsecureListen = true, true, true
			want.Gateway.UnknownModels = "pass"
			x.want(&want)
			got, _ := readEPP(t, x.args...)
			require.Equal(t, want, got)
		})
	}
}

// TestTheFileStandsBetweenTheReferencesDefaultsAndWhatIsGiven.
func TestTheFileStandsBetweenTheReferencesDefaultsAndWhatIsGiven(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.Mkdir("c", 0o700))
	for _, name := range []string{"a.crt", "a.key", "c/tls.crt", "c/tls.key"} {
		require.NoError(t, os.WriteFile(name, nil, 0o600))
	}
	const file = "baton.yaml"
	require.NoError(t, os.WriteFile(file, []byte(`
listen: 127.0.0.1:7
probes: {listen: ""}
metrics: {listen: "127.0.0.1:8"}
tls: {cert: a.crt, key: a.key}
trace: {endpoint: "127.0.0.1:4317"}
gateway: {endpoints: 3, selection_header: true}
discovery: {file: workers.yaml}
`), 0o600))
	read := func(args ...string) Config {
		c, _, err := EPP(NewFlagSet("epp", "", t.Output()), append([]string{"--baton-config", file}, args...))
		require.NoError(t, err)
		return c
	}
	c := read()
	require.Equal(t, []string{"127.0.0.1:7", "", "127.0.0.1:8"}, []string{c.Listen, c.Probes.Listen, c.Metrics.Listen})
	require.Equal(t, "a.crt", c.TLS.Cert)
	require.Equal(t, "127.0.0.1:4317", c.Trace.Endpoint)
	require.Equal(t, extproc.Gateway{Enabled: true, Endpoints: 3, ReasonHeader: "x-llm-d-request-dropped-reason", PassUnknown: true, SelectionHeader: true}, c.gateway())

	c = read("--grpc-port=1", "--grpc-health-port=2", "--metrics-port=3", "--cert-path=c", "--tracing=false")
	require.Equal(t, []string{":1", ":2", ":3"}, []string{c.Listen, c.Probes.Listen, c.Metrics.Listen})
	require.Equal(t, "c/tls.crt", c.TLS.Cert)
	require.Empty(t, c.Trace.Endpoint)
	c = read("--secure-serving=false")
	require.False(t, c.TLS.On(), "a certificate in the file is not used then")
}

// TestValuesOfTheWrongFormAreRefused, and flags that no reference has.
func TestValuesOfTheWrongFormAreRefused(t *testing.T) {
	for _, args := range []string{
		"--grpc-port 65536", "--grpc-port x", "--grpc-health-port -1", "--metrics-port=", "--drain-timeout 7", "--drain-timeout=-1s",
		"--secure-serving=maybe", "--v=much", "--ha-enable-leader-election=2", "--refresh-metrics-interval 50",
		"--disable-endpoint-subset-filter=x", "--pool-nam x", "--config x", "--pool-name", "extra",
	} {
		_, _, err := EPP(NewFlagSet("epp", "", t.Output()), append([]string{"--workers", "w.yaml"}, strings.Fields(args)...))
		require.ErrorIs(t, err, ErrUsage, args)
	}
}

func TestFlagsWithoutEffectAreNotedOnce(t *testing.T) {
	open := "no credentials are checked"
	for name, x := range map[string]struct {
		args  []string
		flags []string
		warns bool
	}{
		"none given: that metrics are open is said": {nil, []string{"--metrics-endpoint-auth"}, true},
		"asked for":       {[]string{"--metrics-endpoint-auth"}, []string{"--metrics-endpoint-auth"}, true},
		"metrics for all": {[]string{"--metrics-endpoint-auth=false"}, nil, false},
		"given twice, and one that has an effect, and ours": {[]string{"--pool-name", "a", "--pool-name", "b", "--v=1", "--namespace", "n", "--metrics-endpoint-auth=false"}, []string{"--pool-name"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, notes := readEPP(t, x.args...)
			var flags []string
			for _, n := range notes {
				flags = append(flags, n.Flag)
				require.NotEmpty(t, n.Reason)
				require.Equal(t, n.Flag == "--metrics-endpoint-auth", n.Level == slog.LevelWarn)
				require.Equal(t, n.Flag == "--metrics-endpoint-auth", strings.Contains(n.Reason, open))
			}
			require.Equal(t, x.flags, flags)
		})
	}
}
