package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestMain lets the test binary be the command, so that tests can kill it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "run-enginesim" {
		os.Args = append(os.Args[:1], os.Args[2:]...)
		main()
	}
	os.Exit(m.Run())
}

// spawn starts a worker process and returns what it said of itself.
func spawn(t *testing.T, args ...string) (enginesim.Identity, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"run-enginesim"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err)
	var id enginesim.Identity
	require.NoError(t, json.Unmarshal(line, &id), string(line))
	return id, cmd
}

func TestProcessesMeetAndDie(t *testing.T) {
	p, pcmd := spawn(t, "--role", "prefill", "--id", "18446744073709551615")
	d, dcmd := spawn(t, "--role=decode", "--heartbeat-interval=50ms", "--decode-us-per-token=0")
	require.Equal(t, "18446744073709551615", p.ID.String())
	ask := func(id enginesim.Identity, room int) (int, string) {
		body := fmt.Sprintf(`{"prompt":"a b","bootstrap_host":%q,"bootstrap_port":%d,"bootstrap_room":%d}`, p.Bootstrap.Host, p.Bootstrap.Port, room)
		resp, err := http.Post("http://"+id.Endpoint+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close() //nolint:errcheck // read to its end
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(b)
	}
	pre := make(chan int, 1)
	go func() { status, _ := ask(p, 1); pre <- status }()
	status, body := ask(d, 1)
	require.Equal(t, 200, status, body)
	require.Contains(t, body, "d"+enginesim.Digest(enginesim.Tokenize("a b")))
	require.Equal(t, 200, <-pre)

	ctl := enginesim.Client{BaseURL: "http://" + p.Endpoint}
	require.NoError(t, ctl.SetFault(context.Background(), enginesim.Fault{Mode: enginesim.FaultDie}))
	go ask(p, 2)
	status, body = ask(d, 2)
	require.Equal(t, 500, status)
	require.Contains(t, body, "missed 2 heartbeats")
	var exit *exec.ExitError
	require.ErrorAs(t, pcmd.Wait(), &exit)
	require.Equal(t, 137, exit.ExitCode())

	require.NoError(t, dcmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, dcmd.Wait())
}

func TestAStoppedPrefillProcessIsDeadToItsDecodes(t *testing.T) {
	p, pcmd := spawn(t, "--role=prefill")
	d, _ := spawn(t, "--role=decode", "--heartbeat-interval=50ms")
	require.NoError(t, pcmd.Process.Signal(syscall.SIGSTOP))
	body := fmt.Sprintf(`{"prompt":"a b","bootstrap_host":%q,"bootstrap_port":%d,"bootstrap_room":1}`, p.Bootstrap.Host, p.Bootstrap.Port)
	resp, err := http.Post("http://"+d.Endpoint+"/v1/completions", "application/json", strings.NewReader(body))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 500, resp.StatusCode)
}

func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		code int
		text string
	}{
		{"help", []string{"--help"}, 0, "Usage: enginesim"},
		{"no role", nil, 2, "expected prefill, decode or aggregated"},
		{"a bad flag", []string{"--nope"}, 2, "nope"},
		{"an argument", []string{"--role=decode", "x"}, 2, "expected flags only"},
		{"a bad id", []string{"--role=decode", "--id=0"}, 2, "instance id"},
		{"an engine that is none", []string{"--role=decode", "--engine=triton"}, 2, "expected sglang, vllm, vllm-mooncake or trtllm"},
		{"another engine's flag", []string{"--role=decode", "--kv-load-failure=recompute"}, 2, "only vllm can recompute"},
		{"a bad value", []string{"--role=decode", "--page-size=-1"}, 2, "page-size"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, tc.code, run(t.Context(), tc.args, &stdout, &stderr))
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(), tc.text)
		})
	}
}

func TestVLLMProcessesHandOverAndARestartForgets(t *testing.T) {
	p, pcmd := spawn(t, "--role=prefill", "--engine=vllm", "--kv-lease=1m")
	d, _ := spawn(t, "--role=decode", "--engine=vllm", "--pull-timeout=2s", "--decode-us-per-token=0")
	ask := func(id enginesim.Identity, body string) (int, string) {
		resp, err := http.Post("http://"+id.Endpoint+"/v1/completions", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer resp.Body.Close() //nolint:errcheck // read to its end
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(b)
	}
	prefill := func() string {
		status, body := ask(p, `{"prompt":"a b","max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}}`)
		require.Equal(t, 200, status, body)
		var answer struct {
			Handoff json.RawMessage `json:"kv_transfer_params"`
		}
		require.NoError(t, json.Unmarshal([]byte(body), &answer))
		return fmt.Sprintf(`{"prompt":"a b","max_tokens":1,"kv_transfer_params":%s}`, answer.Handoff)
	}
	status, body := ask(d, prefill())
	require.Equal(t, 200, status, body)
	last := prefill()
	require.NoError(t, pcmd.Process.Kill())
	_ = pcmd.Wait()
	status, body = ask(d, last)
	require.Equal(t, 500, status)
	// A connection that is left from before may be found closed only by using it.
	require.Regexp(t, "side channel "+`[0-9.:]+: .*(refused|reset by peer|EOF)`, body)
	p, _ = spawn(t, "--role=prefill", "--engine=vllm", "--listen="+p.Endpoint)
	st, err := enginesim.Client{BaseURL: "http://" + p.Endpoint}.State(context.Background(), false)
	require.NoError(t, err)
	require.Equal(t, enginesim.HandoffState{}, st.Handoff)
	st, err = enginesim.Client{BaseURL: "http://" + d.Endpoint}.State(context.Background(), false)
	require.NoError(t, err)
	require.Equal(t, enginesim.HandoffState{Pulled: 1, PullsFailed: 1}, st.Handoff)
	require.Empty(t, st.Violations)
}

// TestTheFactsOfAVLLMWorker reads the simulator as a registrar does.
func TestTheFactsOfAVLLMWorker(t *testing.T) {
	p, _ := spawn(t, "--role=prefill", "--engine=vllm", "--page-size=32", "--capacity-blocks=77", "--dp-size=2")
	c, err := engine.New(engine.Config{URL: "http://" + p.Endpoint})
	require.NoError(t, err)
	defer c.Close()
	f, err := c.Facts(context.Background())
	require.NoError(t, err)
	require.Equal(t, worker.VLLM, f.Engine)
	require.Equal(t, []string{"sim"}, f.Models)
	require.Equal(t, []uint64{32, 77, 2}, []uint64{uint64(f.BlockSize), f.CapacityBlocks, uint64(f.DPSize)})
	require.NotEmpty(t, f.Mark.Start)
	n, err := c.InFlight(context.Background())
	require.NoError(t, err)
	require.Zero(t, n)
}
