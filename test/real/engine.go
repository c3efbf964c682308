package real

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// Options say how to run an engine.
type Options struct {
	Home  string      // see [Home]
	Name  string      // in messages
	Model string      // a folder of the install's models
	Role  worker.Role // prefill and decode transfer KV by NIXL over TCP
	Args  []string    // more flags of the engine
	// Mooncake has a vLLM transfer KV by MooncakeConnector, over TCP.
	Mooncake bool
	Env      []string
	// APIKey is what vLLM asks requests for; default none.
	APIKey string
	// Own has the engine keep its own limits: how long a prompt may be, how many requests run
	// at once. Without it they are small, so that tests reach them.
	Own bool
}

// Engine is one real engine.
type Engine struct {
	*stack.Process
	Kind   worker.Engine
	Role   worker.Role
	Served string // the model, as requests name it
	URL    string
	APIKey string // that requests have to show
	// Ports of its KV events and their replay; of SGLang's or Mooncake's bootstrap server.
	Events, Replay, Bootstrap int

	program stack.ProgramOptions
}

// BlockSize is the engines' own: vLLM on a CPU wants a multiple of 32.
const BlockSize = 32

// startTime bounds the start of an engine: some 100 s on two quiet cores, and many times
// that on busy ones.
const startTime = 20 * time.Minute

// common is the environment of both: nothing is fetched, nobody is told, one thread. KV moves
// by the network device.
func common(device string) []string {
	return []string{
		"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "DO_NOT_TRACK=1", "VLLM_NO_USAGE_STATS=1", "TOKENIZERS_PARALLELISM=false",
		"PYTHONDONTWRITEBYTECODE=", // else each start compiles Python's modules again, which is half of its time
		"OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=", "UCX_TLS=tcp,self", "UCX_NET_DEVICES=" + device,
	}
}

// Place is where an engine listens.
type Place struct {
	Host   string // for requests
	Peers  string // the address by which other engines reach it
	Device string // the network device of that address
	// Ports of requests, KV events, their replay, and what engines ask each other for: NIXL's
	// side channel or Mooncake's bootstrap.
	Port, Events, Replay, Peer int
}

// Command is how an engine is started.
type Command struct {
	Path      string
	Args, Env []string
}

// VLLM returns how vLLM is started. Flags that neither o nor at has are in o.Args.
func VLLM(o *Options, at *Place) Command {
	venv := filepath.Join(o.Home, "vllm")
	args := []string{
		"serve", filepath.Join(o.Home, "models", o.Model), "--served-model-name", o.Model,
		"--host", at.Host, "--port", strconv.Itoa(at.Port),
		"--dtype", "bfloat16", "--enforce-eager",
		"--block-size", strconv.Itoa(BlockSize), "--enable-prefix-caching", "--enable-prompt-tokens-details",
		"--kv-events-config", fmt.Sprintf(
			`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d","topic":""}`, at.Events, at.Replay),
	}
	if !o.Own {
		args = append(args, "--max-model-len", "4096", "--max-num-seqs", "8")
	}
	if o.Role != worker.Aggregated {
		role := map[worker.Role]string{worker.Prefill: "kv_producer", worker.Decode: "kv_consumer"}[o.Role]
		connector := fmt.Sprintf(`{"kv_connector":"NixlConnector","kv_role":%q,"kv_buffer_device":"cpu"}`, role)
		if o.Mooncake {
			connector = fmt.Sprintf(`{"kv_connector":"MooncakeConnector","kv_role":%q,"kv_connector_extra_config":{"mooncake_protocol":"tcp"}}`, role)
		}
		args = append(args, "--kv-transfer-config", connector)
	}
	if o.APIKey != "" {
		args = append(args, "--api-key", o.APIKey)
	}
	env := append(common(at.Device),
		"PATH="+filepath.Join(venv, "bin")+":/usr/local/bin:/usr/bin:/bin",
		"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind",
		"VLLM_NIXL_SIDE_CHANNEL_HOST="+at.Peers, fmt.Sprintf("VLLM_NIXL_SIDE_CHANNEL_PORT=%d", at.Peer))
	if o.Mooncake {
		dir := filepath.Join(o.Home, "mooncake")
		env = append(env, "PYTHONPATH="+dir, "LD_LIBRARY_PATH="+filepath.Join(dir, "lib"), "VLLM_HOST_IP="+at.Peers,
			fmt.Sprintf("VLLM_MOONCAKE_BOOTSTRAP_PORT=%d", at.Peer))
	}
	return Command{Path: filepath.Join(venv, "bin", "vllm"), Args: append(args, o.Args...), Env: append(env, o.Env...)}
}

// StartVLLM runs vLLM and returns once it serves.
func StartVLLM(ctx context.Context, o Options) (*Engine, error) {
	ports, err := stack.FreePorts(ctx, 4)
	if err != nil {
		return nil, err
	}
	at := Place{Host: "127.0.0.1", Peers: "127.0.0.1", Device: "lo", Port: ports[0], Events: ports[1], Replay: ports[2], Peer: ports[3]}
	e := &Engine{Kind: worker.VLLM, Role: o.Role, Served: o.Model, APIKey: o.APIKey, Events: at.Events, Replay: at.Replay}
	if o.Mooncake {
		e.Kind, e.Bootstrap = worker.VLLMMooncake, at.Peer
	}
	return e.start(ctx, o.Name, at.Port, VLLM(&o, &at))
}

// StartSGLang runs SGLang, as python/sglang_cpu.py has changed it, and returns once it
// serves.
func StartSGLang(ctx context.Context, o Options) (*Engine, error) {
	ports, err := stack.FreePorts(ctx, 4)
	if err != nil {
		return nil, err
	}
	e := &Engine{Kind: worker.SGLang, Role: o.Role, Served: o.Model, Events: ports[1], Replay: ports[2]}
	venv := filepath.Join(o.Home, "sglang")
	// Prefill apart, with its steps overlapped, ends at the first prompt that it computes in
	// parts: it sends each part on a stream of CUDA's. All else is as SGLang itself chooses.
	args := []string{
		"-m", "sglang.launch_server", "--model-path", filepath.Join(o.Home, "models", o.Model), "--served-model-name", o.Model,
		"--host", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--device", "cpu",
		"--disable-overlap-schedule", "--page-size", strconv.Itoa(BlockSize), "--dtype", "bfloat16",
		"--enable-metrics", "--enable-cache-report",
		"--kv-events-config", fmt.Sprintf(`{"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d","topic":""}`, e.Events, e.Replay),
	}
	if o.Own {
		// Else it takes what memory there is.
		args = append(args, "--max-total-tokens", "131072")
	} else {
		args = append(args, "--max-total-tokens", "8192", "--max-running-requests", "4")
	}
	if o.Role != worker.Aggregated {
		e.Bootstrap = ports[3]
		args = append(args, "--disaggregation-mode", o.Role.String(), "--disaggregation-transfer-backend", "nixl",
			"--disaggregation-bootstrap-port", strconv.Itoa(e.Bootstrap))
		if o.Role == worker.Decode {
			// Else it takes a share of what the machine has free beyond 10 GiB, and does not start
			// where there is none.
			args = append(args, "--hicache-ratio", "2")
		}
	}
	env := append(common("lo"), "SGLANG_USE_CPU_ENGINE=1")
	return e.start(ctx, o.Name, ports[0], Command{Path: filepath.Join(venv, "bin", "python"), Args: append(args, o.Args...), Env: append(env, o.Env...)})
}

// start runs the engine for the first time.
func (e *Engine) start(ctx context.Context, name string, port int, c Command) (*Engine, error) {
	e.URL = fmt.Sprintf("http://127.0.0.1:%d", port)
	e.program = stack.ProgramOptions{Name: name, Path: c.Path, Args: c.Args, Env: c.Env}
	if err := e.run(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

// Restart runs an engine again that has ended, at the same ports, and returns once it
// serves.
func (e *Engine) Restart(ctx context.Context) error {
	if e.Alive() {
		return fmt.Errorf("real: %s is started again while it runs", e.Name)
	}
	return e.run(ctx)
}

// run starts the engine and waits until it says that it is well.
func (e *Engine) run(ctx context.Context) error {
	var err error
	e.Process, err = stack.StartProgram(ctx, e.program)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	client := http.Client{Timeout: 5 * time.Second}
	err = stack.Await(ctx, e.Name+" to serve", func() bool {
		if !e.Alive() {
			return true
		}
		resp, err := client.Get(e.URL + "/health")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	if err == nil && !e.Alive() {
		err = fmt.Errorf("real: %s ended before it served: %w", e.Name, e.Err())
	}
	if err == nil && e.Kind != worker.SGLang {
		err = e.askForTiles(ctx)
	}
	if err != nil {
		_ = e.Kill()
		return fmt.Errorf("%w\n%s", err, e.Log())
	}
	return nil
}

// askForTiles has each rank of vLLM compute a prompt that its libraries multiply with AMX, where
// the CPU has that: they ask the kernel for AMX's tiles by then, vLLM's attention uses them
// without. So an engine whose first prompt is a few tokens, or comes by transfer, would end
// (SIGILL). The prompt is shorter than a block, so that nothing of it stays.
func (e *Engine) askForTiles(ctx context.Context) error {
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !strings.Contains(string(cpu), " amx_tile") {
		return nil
	}
	for rank := 0; ; rank++ {
		status, err := e.firstPrompt(ctx, rank)
		switch {
		case err != nil:
			return fmt.Errorf("real: %s: a first prompt: %w", e.Name, err)
		case status == http.StatusBadRequest && rank > 0:
			return nil // there is no such rank
		case status != http.StatusOK:
			return fmt.Errorf("real: %s: a first prompt gets %d", e.Name, status)
		}
	}
}

func (e *Engine) firstPrompt(ctx context.Context, rank int) (status int, err error) {
	prompt := strings.TrimSuffix(strings.Repeat("100,", BlockSize-1), ",")
	body := fmt.Sprintf(`{"model":%q,"prompt":[%s],"max_tokens":1}`, e.Served, prompt)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("content-type", "application/json")
	req.Header.Set("x-data-parallel-rank", strconv.Itoa(rank))
	if e.APIKey != "" {
		req.Header.Set("authorization", "Bearer "+e.APIKey)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// Pause stops the engine until Resume: idle, it would spin.
func (e *Engine) Pause() error { return e.Signal(syscall.SIGSTOP) }

// Resume lets it go on.
func (e *Engine) Resume() error { return e.Signal(syscall.SIGCONT) }
