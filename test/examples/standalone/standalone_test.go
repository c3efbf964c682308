//go:build e2e

// Package standalone runs the example as a newcomer would: its configuration is
// checked by the plugin, and its script serves a request.
package standalone

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/syncbuf"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

func build(t *testing.T) (root, bin string) {
	t.Helper()
	root, err := stack.Root()
	require.NoError(t, err)
	bin = t.TempDir()
	require.NoError(t, stack.Build(bin, "", false, "./cmd/extproc", "./test/cmd/enginesim"))
	return root, bin
}

func TestTheExampleRunsAsItStands(t *testing.T) {
	root, bin := build(t)

	check := exec.CommandContext(t.Context(), filepath.Join(bin, "extproc"), "check", "--config", "examples/standalone/baton.yaml")
	check.Dir = root
	out, err := check.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "overdue_per_token: 2ms")

	sample, err := os.ReadFile("../../../examples/standalone/workers.yaml")
	require.NoError(t, err)
	workers, err := record.ParseList("workers.yaml", sample)
	require.NoError(t, err)
	require.Len(t, workers, 4)

	list := filepath.Join(t.TempDir(), "workers.yaml")
	require.NoError(t, file.Write(list, startWorkers(t, bin)))
	client := runScript(t, root, bin, list)

	var got string
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	require.NoError(t, stack.Await(ctx, "the script to serve a request", func() bool {
		resp, err := http.Post(client+"/v1/completions", "application/json",
			strings.NewReader(`{"model":"qwen3-32b","prompt":"hello","max_tokens":3}`))
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var b bytes.Buffer
		_, err = b.ReadFrom(resp.Body)
		got = b.String()
		return err == nil && resp.StatusCode == http.StatusOK
	}), "last answer: %s", got)
	require.Contains(t, got, `"completion_tokens":3`)
	provesItself(t, filepath.Join(root, "docs", "install.md"), client)
}

// provesItself runs the page's first command that asks for a decision. curl's own type of a
// body is that of a form, which engines refuse.
func provesItself(t *testing.T, page, client string) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Log("no curl")
		return
	}
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	command := regexp.MustCompile(`(?m)^ *(curl .*\\\n(?:.*\\\n)*.*)$`).FindStringSubmatch(string(text))
	require.NotNil(t, command)
	asks := strings.NewReplacer("http://127.0.0.1:10000", client, "MODEL", "qwen3-32b").Replace(command[1])
	require.Contains(t, asks, client)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", asks).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "200 OK", "%s (this example's debug_header is off)", asks)
}

// TestTheUnitsAskForWhatTheProgramHas: systemd would start a program with a flag that it
// does not have again and again.
func TestTheUnitsAskForWhatTheProgramHas(t *testing.T) {
	_, bin := build(t)
	for unit, name := range map[string]string{"baton.service": "serve", "baton-register@.service": "register"} {
		text, err := os.ReadFile(filepath.Join("../../../examples/standalone/systemd", unit))
		require.NoError(t, err)
		_, line, found := strings.Cut(string(text), "\nExecStart=/usr/local/bin/extproc ")
		require.True(t, found, unit)
		line, _, _ = strings.Cut(line, "\n")
		words := strings.Fields(line)
		require.Equal(t, name, words[0], unit)
		help, err := exec.CommandContext(t.Context(), filepath.Join(bin, "extproc"), name, "--help").CombinedOutput()
		require.NoError(t, err, "%s", help)
		for _, word := range words {
			if strings.HasPrefix(word, "--") {
				require.Regexp(t, `(?m)^\s*`+word[1:]+`\b`, string(help), unit)
			}
		}
	}
}

// TestTheSocketUnitIsWhereThePluginListens: else the plugin refuses the socket that it is given.
func TestTheSocketUnitIsWhereThePluginListens(t *testing.T) {
	unit, err := os.ReadFile(filepath.Join("../../../examples/standalone/systemd", "baton.socket"))
	require.NoError(t, err)
	require.Contains(t, string(unit), "\nListenStream="+strings.TrimPrefix(config.Default().Listen, "unix://")+"\n")
	require.Contains(t, string(unit), "\nSocketMode="+string(config.Default().SocketMode)+"\n")
}

func startWorkers(t *testing.T, bin string) []*worker.Worker {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var infos []*worker.Worker
	var running []*stack.Worker
	t.Cleanup(func() {
		cancel()
		for _, w := range running {
			<-w.Done()
		}
	})
	for i, role := range []string{"prefill", "decode"} {
		w, err := stack.StartWorker(ctx, bin, "--role", role, "--id", fmt.Sprint(101+100*i), "--model", "qwen3-32b")
		require.NoError(t, err)
		running, infos = append(running, w), append(infos, w.Info)
	}
	return infos
}

// runScript runs run.sh on free ports and returns where clients reach it. It
// ends with the test, by the signal that Ctrl-C sends.
func runScript(t *testing.T, root, bin, list string) string {
	t.Helper()
	if why := stack.TooOldAsShipped(); why != "" {
		t.Skip(why)
	}
	envoy, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	ports, err := stack.FreePorts(t.Context(), 2)
	require.NoError(t, err)
	script := exec.Command(filepath.Join(root, "examples", "standalone", "run.sh"), list)
	script.Env = append(os.Environ(), "ENVOY="+envoy, "BIN="+bin,
		fmt.Sprintf("CLIENT_PORT=%d", ports[0]), fmt.Sprintf("BATON_ADMIN=127.0.0.1:%d", ports[1]))
	log := &syncbuf.Buffer{}
	script.Stdout, script.Stderr = log, log
	script.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stack.EndWithParent(script, syscall.SIGTERM)
	require.NoError(t, script.Start())
	t.Cleanup(func() {
		require.NoError(t, script.Process.Signal(syscall.SIGINT))
		err := script.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
		require.NoError(t, err, "the script ends with 0 on Ctrl-C")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	require.NoError(t, stack.Await(ctx, "the script to say where clients reach it", func() bool {
		return strings.Contains(log.String(), "clients: http")
	}), "%s", log)
	for _, port := range ports { // each port is bound before it is said
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	return fmt.Sprintf("http://127.0.0.1:%d", ports[0])
}

// TestATakenPortIsSaidBeforeAnythingRuns, with the variable that changes it.
func TestATakenPortIsSaidBeforeAnythingRuns(t *testing.T) {
	root, bin := build(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	envoy, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	free, err := stack.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	script := exec.CommandContext(t.Context(), filepath.Join(root, "examples", "standalone", "run.sh"))
	script.Env = append(os.Environ(), "ENVOY="+envoy, "BIN="+bin, "CLIENT_PORT="+port, fmt.Sprintf("BATON_ADMIN=127.0.0.1:%d", free[0]))
	out, err := script.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, "CLIENT_PORT="+port+": something listens on that port already; set CLIENT_PORT to another\n", string(out))
}
