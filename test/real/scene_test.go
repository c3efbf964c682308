//go:build real

package real

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

var (
	home, binDir, envoyPath string
	engines                 *fleet
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		fail := func(err error) int {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		root, err := stack.Root()
		if err != nil {
			return fail(err)
		}
		home = Home(root)
		if err := Installed(home); err != nil {
			return fail(err)
		}
		envoyPath, err = stack.FindEnvoy(os.Getenv("ENVOY"))
		if err != nil {
			return fail(err)
		}
		binDir, err = os.MkdirTemp("", "baton-bin-")
		if err != nil {
			return fail(err)
		}
		defer os.RemoveAll(binDir)
		if err := stack.Build(binDir, "invariants", false, "./cmd/extproc", "./test/cmd/devetcd"); err != nil {
			return fail(err)
		}
		engines = &fleet{ctx: ctx, has: map[string]*Engine{}}
		defer engines.end()
		code := m.Run()
		if *page {
			if err := writePage(root, time.Now()); err != nil {
				return fail(err)
			}
		}
		return code
	}())
}

// spec says what an engine is.
type spec struct {
	kind worker.Engine
	o    Options
}

// specs are the engines that tests share, by name. Those of few blocks evict soon.
var specs = map[string]spec{
	"vllm-1":   {worker.VLLM, Options{Model: "qwen3", Role: worker.Aggregated, Args: toolArgs}},
	"vllm-2":   {worker.VLLM, Options{Model: "qwen3", Role: worker.Aggregated, Args: toolArgs}},
	"llava-1":  {worker.VLLM, Options{Model: "llava", Role: worker.Aggregated, Args: seeing}},
	"llava-2":  {worker.VLLM, Options{Model: "llava", Role: worker.Aggregated, Args: seeing}},
	"vllm-key": {worker.VLLM, Options{Model: "tiny", Role: worker.Aggregated, Args: pairBlocks, APIKey: "sesame"}},
	"sliding":  {worker.VLLM, Options{Model: "sliding", Role: worker.Aggregated, Args: []string{"--num-gpu-blocks-override", "512"}}},
	"lora":     {worker.VLLM, Options{Model: "tiny", Role: worker.Aggregated, Args: []string{"--num-gpu-blocks-override", "512", "--enable-lora", "--lora-modules"}}},
	"vllm-p1":  {worker.VLLM, Options{Model: "tiny", Role: worker.Prefill, Args: pairBlocks}},
	"vllm-p2":  {worker.VLLM, Options{Model: "tiny", Role: worker.Prefill, Args: pairBlocks}},
	"vllm-d1":  {worker.VLLM, Options{Model: "tiny", Role: worker.Decode, Args: pairBlocks}},
	"vllm-d2":  {worker.VLLM, Options{Model: "tiny", Role: worker.Decode, Args: pairBlocks}},
	// Decode of a pair that serves alone, too: what it is told of a transfer it does.
	"vllm-open":    {worker.VLLM, Options{Model: "tiny", Role: worker.Decode, Args: pairBlocks}},
	"vllm-tools-p": toolsVLLM(worker.Prefill), "vllm-tools-d": toolsVLLM(worker.Decode),
	"sglang-tools-p": toolsSGLang(worker.Prefill), "sglang-tools-d": toolsSGLang(worker.Decode),
	"mooncake-p": {worker.VLLM, Options{Model: "tiny", Role: worker.Prefill, Mooncake: true, Args: pairBlocks}},
	"mooncake-d": {worker.VLLM, Options{Model: "tiny", Role: worker.Decode, Mooncake: true, Args: pairBlocks}},
	"sglang-lora": {worker.SGLang, Options{Model: "tiny", Role: worker.Aggregated, Args: []string{
		"--enable-lora", "--lora-backend", "torch_native", "--max-loras-per-batch", "2", "--lora-paths"}}},
	"sglang-1": {worker.SGLang, Options{Model: "tiny", Role: worker.Aggregated}},
	"vllm-dp2": {worker.VLLM, Options{Model: "tiny", Role: worker.Aggregated, Args: []string{"--num-gpu-blocks-override", "256", "--data-parallel-size", "2"}}},
	"bench-1":  benchOf(worker.Aggregated), "bench-2": benchOf(worker.Aggregated),
	"bench-p": benchOf(worker.Prefill), "bench-d": benchOf(worker.Decode),
	"sglang-p1": {worker.SGLang, Options{Model: "tiny", Role: worker.Prefill}},
	"sglang-d1": {worker.SGLang, Options{Model: "tiny", Role: worker.Decode}},

	"vllm-own-1": ownVLLM(worker.Aggregated), "vllm-own-2": ownVLLM(worker.Aggregated),
	"vllm-own-p1": ownVLLM(worker.Prefill), "vllm-own-p2": ownVLLM(worker.Prefill),
	"vllm-own-d1": ownVLLM(worker.Decode), "vllm-own-d2": ownVLLM(worker.Decode),
	"sglang-own-1": ownSGLang(worker.Aggregated), "sglang-own-2": ownSGLang(worker.Aggregated),
	"sglang-own-p1": ownSGLang(worker.Prefill), "sglang-own-p2": ownSGLang(worker.Prefill),
	"sglang-own-d1": ownSGLang(worker.Decode), "sglang-own-d2": ownSGLang(worker.Decode),
}

// ownVLLM and ownSGLang are engines with their own limits, which can load adapters.
func ownVLLM(role worker.Role) spec {
	return spec{worker.VLLM, Options{
		Model: "tiny", Role: role, Own: true, Args: []string{"--num-gpu-blocks-override", "4096", "--enable-lora"},
		Env: []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"},
	}}
}

func ownSGLang(role worker.Role) spec {
	return spec{worker.SGLang, Options{Model: "tiny", Role: role, Own: true, Args: []string{
		"--enable-lora", "--lora-backend", "torch_native", "--max-lora-rank", "4", "--lora-target-modules", "q_proj", "v_proj",
	}}}
}

// toolsVLLM and toolsSGLang are engines that can be made to call a tool: the noise of their models is
// held to the schema of its arguments, without white space, which would have no end.
func toolsVLLM(role worker.Role) spec {
	return spec{worker.VLLM, Options{Model: "qwen3", Role: role, Args: toolArgs, Env: []string{"VLLM_ENFORCE_STRICT_TOOL_CALLING=0"}}}
}

func toolsSGLang(role worker.Role) spec {
	return spec{worker.SGLang, Options{Model: "qwen3", Role: role, Args: []string{"--tool-call-parser", "qwen25", "--constrained-json-disable-any-whitespace"}}}
}

var (
	toolArgs   = []string{"--num-gpu-blocks-override", "256", "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--structured-outputs-config", `{"backend":"xgrammar","disable_any_whitespace":true}`, "--enable-scale-out"}
	seeing     = []string{"--num-gpu-blocks-override", "256", "--enable-scale-out"}
	pairBlocks = []string{"--num-gpu-blocks-override", "1024", "--enable-scale-out"} // for /inference/v1/generate
)

// fleet is the engines that have been started. One that no test uses is stopped, and ends
// if others need its memory.
type fleet struct {
	ctx   context.Context //nolint:containedctx // the process's
	mu    sync.Mutex
	has   map[string]*Engine
	order []string // of those in has, the one that was used last at the end
}

// decodeFree is the memory that SGLang's decode wants to be left: it does not start with less
// than 10 GiB.
const decodeFree = 12 << 30

// makeRoom ends engines that no test uses, the one that was used longest ago first, until
// there is memory to start so many of those that are kept, and to start one of them again.
func (f *fleet) makeRoom(t *testing.T, starts int, kept []string) {
	t.Helper()
	want := uint64(starts+1) * StartBytes
	if slices.ContainsFunc(kept, func(name string) bool {
		return specs[name].kind == worker.SGLang && specs[name].o.Role == worker.Decode
	}) {
		want = uint64(starts)*StartBytes + decodeFree
	}
	for _, name := range slices.Clone(f.order) {
		free, err := FreeMemory()
		require.NoError(t, err)
		if free >= want {
			return
		}
		if !slices.Contains(kept, name) {
			t.Logf("%s ends: %d MiB of memory are free", name, free>>20)
			_ = f.has[name].Kill()
			awaitMore(f.ctx, free)
			f.order = slices.DeleteFunc(f.order, func(n string) bool { return n == name })
			delete(f.has, name)
		}
	}
}

// awaitMore returns once more memory is free, as the last of an engine's processes has ended,
// or after two seconds.
func awaitMore(ctx context.Context, before uint64) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_ = stack.Await(ctx, "memory", func() bool {
		free, err := FreeMemory()
		return err != nil || free >= before+1<<30
	})
}

// use returns the engines, started together where they are not, and going on. They are
// stopped when the test ends.
func (f *fleet) use(t *testing.T, names ...string) []*Engine {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	out, errs := make([]*Engine, len(names)), make([]error, len(names))
	starts := 0
	for i, name := range names {
		if e := f.has[name]; e != nil && e.Alive() {
			out[i] = e
			continue
		}
		starts++
	}
	f.makeRoom(t, starts, names)
	var wg sync.WaitGroup
	for i, name := range names {
		if out[i] != nil {
			continue
		}
		s, ok := specs[name]
		require.True(t, ok, "engine %q", name)
		o := s.o
		o.Home, o.Name = home, name
		if name == "lora" || name == "sglang-lora" {
			o.Args = append(o.Args, "adapter="+filepath.Join(home, "models", "adapter"))
		}
		wg.Go(func() {
			start := StartVLLM
			if s.kind == worker.SGLang {
				start = StartSGLang
			}
			out[i], errs[i] = start(f.ctx, o)
		})
	}
	began := time.Now()
	wg.Wait()
	for i, name := range names {
		require.NoError(t, errs[i])
		if f.has[name] != out[i] {
			t.Logf("%s serves after %s", name, time.Since(began).Round(time.Second))
		}
		f.has[name] = out[i]
		f.order = append(slices.DeleteFunc(f.order, func(n string) bool { return n == name }), name)
		require.NoError(t, out[i].Resume())
	}
	t.Cleanup(func() {
		for _, e := range out {
			_ = e.Pause()
		}
	})
	return out
}

func (f *fleet) end() {
	for _, e := range f.has {
		_ = e.Kill()
	}
}

// compared is Baton's configuration where its overlap is compared with an engine's: cached is
// only what the engines' events have told, since what Baton has sent to a worker itself it
// would find again for a while under any hash, and a tokenizer that is slow is waited for.
const compared = "routing: {predicted_ttl: 0s}\ntokens: {pictures: auto, wait: 4s}\n"

// scene is Baton before some of the engines: etcd, a register beside each, the plugin
// and Envoy.
type scene struct {
	t       *testing.T
	engines []*Engine
	plugin  *stack.Plugin
	envoy   *stack.Envoy
	etcd    *stack.Etcd
	key     string // shown with each request
	keyFile string // of each register

	modelPath string // of each register: the files that the tokens are made from
}

func newScene(t *testing.T, config string, names ...string) *scene {
	t.Helper()
	return newSceneOf(t, config, engines.use(t, names...)...)
}

func newSceneOf(t *testing.T, config string, es ...*Engine) *scene {
	t.Helper()
	return (&scene{t: t, engines: es}).start(config)
}

func (s *scene) start(config string) *scene {
	t := s.t
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	dir := t.TempDir()
	var registers []*stack.Register
	t.Cleanup(func() {
		if t.Failed() && s.plugin != nil {
			t.Logf("the plugin's log:\n%s", s.plugin.Log())
			for _, r := range registers {
				t.Logf("%s:\n%s", r.Name, r.Log())
			}
		}
		cancel()
	})
	var err error
	s.etcd, err = stack.StartEtcd(ctx, stack.EtcdOptions{BinDir: binDir, Dir: filepath.Join(dir, "etcd")})
	require.NoError(t, err)
	for _, e := range s.engines {
		registers = append(registers, s.register(ctx, e))
	}
	s.startPlugin(ctx, stack.PluginOptions{Dir: dir, Config: config})
	s.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: envoyPath, Dir: dir, Params: envoy.Params{PluginSocket: s.plugin.Socket}})
	require.NoError(t, err)
	s.awaitPlugin()
	return s
}

// register starts a register beside an engine.
func (s *scene) register(ctx context.Context, e *Engine) *stack.Register {
	s.t.Helper()
	r, err := stack.StartRegister(ctx, stack.RegisterOptions{
		BinDir: binDir, EngineURL: e.URL, Etcd: s.etcd.Endpoints, TTL: 5 * time.Second, Args: slices.Concat(e.registerArgs(), s.keyArgs(), s.filesArgs()),
	})
	require.NoError(s.t, err)
	return r
}

// startPlugin starts the scene's plugin. What o does not say is the scene's.
func (s *scene) startPlugin(ctx context.Context, o stack.PluginOptions) {
	s.t.Helper()
	o.BinDir, o.Etcd, o.Args, o.NotWait = binDir, s.etcd.Endpoints, []string{"--log-level", "debug"}, true
	var err error
	s.plugin, err = stack.StartPlugin(ctx, o)
	require.NoError(s.t, err)
}

func (s *scene) awaitPlugin() {
	s.t.Helper()
	s.await("the plugin to know all engines and hear of their caches", func() bool {
		return s.metric("baton_workers", `state="healthy"`) == float64(len(s.engines)) && strings.Count(s.plugin.Log(), "state=connected") >= len(s.engines)
	})
}

// registerArgs are what a register cannot be told by the engine: of vLLM the role and the
// connector.
func (e *Engine) registerArgs() []string {
	args := []string{"--log-level", "debug"}
	if e.Kind != worker.SGLang {
		args = append(args, "--role", e.Role.String())
	}
	if e.Kind == worker.VLLMMooncake {
		args = append(args, "--engine", string(e.Kind), "--bootstrap-port", fmt.Sprint(e.Bootstrap))
	}
	return args
}

func (s *scene) filesArgs() []string {
	if s.modelPath == "" {
		return nil
	}
	return []string{"--model-path", s.modelPath, "--model-files-listen", "127.0.0.1:0"}
}

func (s *scene) keyArgs() []string {
	if s.keyFile == "" {
		return nil
	}
	return []string{"--engine-api-key-file", s.keyFile}
}

// patience is how long a fact is waited for: a busy machine makes engines slow, not wrong.
const patience = 4 * time.Minute

func (s *scene) await(what string, ok func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	require.NoError(s.t, stack.Await(ctx, what, ok))
}

func (s *scene) metric(name string, parts ...string) float64 {
	m, err := s.plugin.Metrics(s.t.Context())
	if err != nil {
		return -1
	}
	v, _ := m.Sum(name, parts...)
	return v
}

// answer is what came of a request.
type answer struct {
	status int
	header http.Header
	body   string // whole, or the events
	usage  usage
	text   string
}

type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Output  int `json:"completion_tokens"`
	Details *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// fields are the members of a request's body.
type fields map[string]any

// ask sends a request through Envoy and reads what comes, to its end.
func (s *scene) ask(path string, body fields) *answer {
	s.t.Helper()
	b, err := json.Marshal(body)
	require.NoError(s.t, err)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.envoy.URL+path, bytes.NewReader(b))
	require.NoError(s.t, err)
	a := &answer{}
	req.Header.Set("content-type", "application/json")
	if s.key != "" {
		req.Header.Set("authorization", "Bearer "+s.key)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	a.status, a.header, a.body = resp.StatusCode, resp.Header, string(all)
	a.read()
	return a
}

// read takes usage and text from a whole answer or from events.
func (a *answer) read() {
	type reply struct {
		Usage   *usage
		Choices []struct {
			Text    string
			Message struct{ Content string }
			Delta   struct{ Content string }
		}
	}
	take := func(b []byte) {
		var r reply
		if json.Unmarshal(b, &r) != nil {
			return
		}
		if r.Usage != nil {
			a.usage = *r.Usage
		}
		for _, c := range r.Choices {
			a.text += c.Text + c.Message.Content + c.Delta.Content
		}
	}
	if !strings.HasPrefix(a.header.Get("content-type"), "text/event-stream") {
		take([]byte(a.body))
		return
	}
	lines := bufio.NewScanner(strings.NewReader(a.body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			take([]byte(data))
		}
	}
}

// choice and decision are what tests read of /debug/decisions.
type choice struct {
	Worker  string `json:"worker_id"`
	Rank    int    `json:"dp_rank"`
	Overlap int    `json:"overlap_blocks"`
	Reason  string `json:"reason"`
}

type decision struct {
	ISL         int     `json:"isl_tokens"`
	Outcome     string  `json:"outcome"`
	Detail      string  `json:"detail"`
	TokenSource string  `json:"token_source"`
	TokenReason string  `json:"token_reason"`
	Prefill     *choice `json:"prefill"`
	Decode      *choice `json:"decode"`
}

// last returns the plugin's latest decision.
func (s *scene) last() *decision {
	s.t.Helper()
	page, err := s.plugin.Page(s.t.Context(), "/debug/decisions?n=1")
	require.NoError(s.t, err)
	var list struct{ Decisions []decision }
	require.NoError(s.t, json.Unmarshal([]byte(page), &list))
	require.Len(s.t, list.Decisions, 1)
	return &list.Decisions[0]
}

// heard waits until the plugin has heard what the engines' caches have become: nothing
// has come for a while.
func (s *scene) heard() {
	s.t.Helper()
	var last float64
	quiet := 0
	s.await("the engines' events to end", func() bool {
		now := s.metric("baton_kv_events_total")
		quiet++
		if now != last {
			last, quiet = now, 0
		}
		return quiet > 5
	})
}
