package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton"
	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/plugin"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// asCommand is set for a process of this test's program that is to be the command.
const asCommand = "BATON_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(mainCode())
	}
	goleak.VerifyTestMain(m,
		// The library that plays a publisher: a closed PUB socket may leave its
		// writer waiting.
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}

// TestScripts runs the command as a person would. The verbs are:
//
//	file name=N     writes the input to $WORK/N
//	run             runs the command with the input as arguments, $WORK and
//	                $ADMIN replaced; shows the exit code and both outputs
//	models          the same, of standard output only what stands behind the configuration
//	check-twice     checks $WORK/config.yaml, checks what was printed, and
//	                shows whether the two outputs are the same
//	admin status=N  a plugin's admin port at $ADMIN that answers the input and
//	                keeps the last question; `asked` shows it
func TestScripts(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // as outside of a cluster, wherever it runs
	datadriven.Walk(t, "testdata/script", func(t *testing.T, file string) {
		s := &script{t: t, work: t.TempDir()}
		datadriven.RunTest(t, file, s.do)
	})
}

type script struct {
	t     *testing.T
	work  string
	admin string
	asked string
}

func (s *script) do(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "file":
		var name string
		d.ScanArgs(t, "name", &name)
		require.NoError(t, os.WriteFile(filepath.Join(s.work, name), []byte(strings.ReplaceAll(d.Input, "$WORK", s.work)+"\n"), 0o600))
		return "ok"
	case "run":
		return s.run(strings.Fields(d.Input)...)
	case "models":
		out := s.run(strings.Fields(d.Input)...)
		if from, to := strings.Index(out, "  listen:"), strings.Index(out, "  # "); from >= 0 && to > from {
			out = out[:from] + out[to:]
		}
		return out
	case "check-twice":
		return s.checkTwice(t)
	case "admin":
		var status int
		d.ScanArgs(t, "status", &status)
		s.serveAdmin(status, d.Input)
		return "ok"
	case "asked":
		return s.asked
	default:
		d.Fatalf(t, "unknown verb %s", d.Cmd)
		return ""
	}
}

func (s *script) run(args ...string) string {
	for i := range args {
		args[i] = strings.NewReplacer("$WORK", s.work, "$ADMIN", s.admin).Replace(args[i])
	}
	var stdout, stderr bytes.Buffer
	code := run(s.t.Context(), args, &stdout, &stderr)
	out := fmt.Sprintf("exit %d\n", code)
	for i, b := range []*bytes.Buffer{&stdout, &stderr} {
		if b.Len() > 0 {
			out += []string{"stdout", "stderr"}[i] + ":\n" + s.steady(b.String())
		}
	}
	return out
}

var version = regexp.MustCompile(`(?m)^extproc ` + regexp.QuoteMeta(baton.Version()) + `(\+dirty)?( \([0-9a-f]+\))?$`)

// steady removes what differs from run to run, and blank lines, which end an
// expectation.
func (s *script) steady(text string) string {
	text = as64BitLinux(strings.NewReplacer(s.work, "$WORK", "\t", "    ").Replace(text))
	if s.admin != "" {
		text = strings.ReplaceAll(text, s.admin, "$ADMIN")
	}
	text = version.ReplaceAllString(text, "extproc VERSION")
	text = strings.ReplaceAll(text, "max_bodies_bytes: "+strconv.FormatInt(plugin.Sized(config.Config{}).Request.MaxBodiesBytes, 10), "max_bodies_bytes: AN_EIGHTH")
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			line = "~\n"
		}
		b.WriteString("  " + strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

func (s *script) checkTwice(t *testing.T) string {
	check := func(file string) string {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), []string{"check", "--config", file}, &stdout, &stderr)
		require.Zero(t, code, "%s", &stderr)
		return stdout.String()
	}
	first := check(filepath.Join(s.work, "config.yaml"))
	again := filepath.Join(s.work, "again.yaml")
	require.NoError(t, os.WriteFile(again, []byte(first), 0o600))
	if second := check(again); second != first {
		return "different:\n" + second
	}
	return "same\n"
}

func (s *script) serveAdmin(status int, answer string) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		s.asked = r.Method + " " + r.URL.String() + "\n" + body.String()
		w.Header().Set("Server", admin.ServerName)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	s.t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		srv.Close()
	})
	s.admin = srv.URL
}

// as64BitLinux is a text of this build with the index's bounds as they are on 64-bit Linux.
// Elsewhere, and under the race detector, they are lower, and the default is the most.
func as64BitLinux(text string) string {
	if kvindex.DefaultMaxBytes != kvindex.MostBytes {
		return text
	}
	most := strconv.Itoa(kvindex.MostBytes)
	return strings.NewReplacer(" to "+most, " to 8589934592", " max_bytes: "+most, " max_bytes: 536870912").Replace(text)
}

// TestEachMistakeInAConfigurationIsRefused: testdata/bad holds one file per
// mistake, named for it. Its first line is what the error must say.
func TestEachMistakeInAConfigurationIsRefused(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			first, _, _ := strings.Cut(string(text), "\n")
			want, ok := strings.CutPrefix(first, "# ")
			require.True(t, ok, "the first line says what the error must say")
			for _, command := range []string{"check", "serve"} {
				var stdout, stderr bytes.Buffer
				code := run(t.Context(), []string{command, "--config", file}, &stdout, &stderr)
				require.Equal(t, exitUsage, code, "%s: %s%s", command, &stdout, &stderr)
				require.Contains(t, as64BitLinux(stderr.String()), want)
				if filepath.Base(file) != "no_discovery_file.yaml" { // which has no line of its own
					require.Contains(t, stderr.String(), file+":", "the place")
				}
				require.True(t, strings.HasPrefix(stderr.String(), "extproc: "), "%s", &stderr)
				require.Empty(t, stdout.String())
			}
		})
	}
}

// TestTheSmallestConfigurationIsRight: the bad files are bad for what they
// are named for only.
func TestTheSmallestConfigurationIsRight(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"check", "--workers", "workers.yaml"}, &stdout, &stderr), "%s", &stderr)
	require.Contains(t, stdout.String(), "file: workers.yaml")
}
