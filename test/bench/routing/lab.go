package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/bench/host"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// parts are the programs that a lab runs.
type parts struct{ bin, envoy, python string }

// build compiles the commands below out and finds Envoy.
func build(out string) (p parts, err error) {
	p.envoy, err = stack.FindEnvoy(os.Getenv("ENVOY"))
	if err != nil {
		return p, fmt.Errorf("%w; -live=false simulates only", err)
	}
	if _, err := exec.LookPath(p.envoy); err != nil {
		return p, fmt.Errorf("envoy: %w: set ENVOY, or run `make tools`; -live=false simulates only", err)
	}
	p.bin = filepath.Join(out, "bin")
	if err := os.MkdirAll(p.bin, 0o755); err != nil {
		return p, err
	}
	return p, stack.Build(p.bin, "", false, "./cmd/extproc", "./test/cmd/enginesim")
}

// lab is the processes of one live run. They end with close.
type lab struct {
	dir     string
	cancel  context.CancelFunc
	prefill []*stack.Worker
	decode  []*stack.Worker
	plugins []*stack.Plugin // replicas
	envoy   *stack.Envoy
	rival   *stack.Process // in the place of the plugins, and maybe of Envoy; nil: none
	url     string         // where requests are sent
}

// openLab starts everything and returns when every replica of the plugin knows all workers
// and follows their events.
func openLab(ctx context.Context, p parts, o *liveOptions, m *liveMode) (*lab, error) {
	dir, err := shortDir()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &lab{dir: dir, cancel: cancel}
	if err := l.open(ctx, p, o, m); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// shortDir makes a folder: the path of a unix socket may have about 100 bytes.
func shortDir() (string, error) { return os.MkdirTemp("", "bench") }

func (l *lab) open(ctx context.Context, p parts, o *liveOptions, m *liveMode) error {
	l.prefill, l.decode = make([]*stack.Worker, o.fleet.Ranks), make([]*stack.Worker, o.decodes())
	var g errgroup.Group
	g.SetLimit(2)
	start := func(to **stack.Worker, args []string) {
		g.Go(func() (err error) { *to, err = stack.StartWorker(ctx, p.bin, args...); return err })
	}
	for i := range l.prefill {
		start(&l.prefill[i], o.prefillArgs(m, i+1))
	}
	for i := range l.decode {
		start(&l.decode[i], o.decodeArgs(m, len(l.prefill)+i+1))
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if m.rival != nil {
		return l.startRival(ctx, p, o, m.rival)
	}
	var infos []*worker.Worker
	for _, w := range slices.Concat(l.prefill, l.decode) {
		infos = append(infos, w.Info)
	}
	workers := filepath.Join(l.dir, "workers.yaml")
	err := file.Write(workers, infos)
	if err != nil {
		return err
	}
	ports, err := l.startPlugins(ctx, p, o, m, workers)
	if err != nil {
		return err
	}
	config, err := envoyConfig(ctx, p.envoy, l.dir, ports)
	if err != nil {
		return err
	}
	l.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: p.envoy, Dir: l.dir, Config: config, LogLevel: "error"})
	if err != nil {
		return err
	}
	l.url = l.envoy.URL
	return l.settle(ctx, m)
}

// startPlugins starts the replicas, each on a port of its own and with one key for all: any of
// them may get the prefill leg of a request that another one has picked for.
func (l *lab) startPlugins(ctx context.Context, p parts, o *liveOptions, m *liveMode, workers string) (ports []int, err error) {
	key := filepath.Join(l.dir, "leg.key")
	if err := os.WriteFile(key, []byte("one key for all replicas"), 0o600); err != nil {
		return nil, err
	}
	ports, err = stack.FreePorts(ctx, m.replicas)
	if err != nil {
		return nil, err
	}
	all := make([]string, len(ports))
	for i, port := range ports {
		all[i] = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	for i, listen := range all {
		dir := filepath.Join(l.dir, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		plugin, err := stack.StartPlugin(ctx, stack.PluginOptions{
			BinDir: p.bin, Dir: dir, Workers: workers, Listen: listen,
			Config: o.pluginConfig(m) + fmt.Sprintf("leg: {key_file: %q, advertise: %q, replicas: [%s], share: %t}\n", key, listen, strings.Join(all, ", "), o.shared),
		})
		if err != nil {
			return nil, fmt.Errorf("replica %d: %w", i, err)
		}
		l.plugins = append(l.plugins, plugin)
	}
	return ports, nil
}

// settle waits until every replica of the plugin knows every worker and, where the mode has
// events, is connected to every prefill worker's.
func (l *lab) settle(ctx context.Context, m *liveMode) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for _, p := range l.plugins {
		if err := stack.Await(ctx, "the plugin to follow the workers", func() bool { return l.follows(ctx, p, m) }); err != nil {
			return err
		}
	}
	return nil
}

// follows tells whether a replica has got so far.
func (l *lab) follows(ctx context.Context, p *stack.Plugin, m *liveMode) bool {
	var state struct {
		Workers []struct {
			Ranks []struct {
				Events struct{ State string } `json:"kv_events"`
			} `json:"ranks"`
		} `json:"workers"`
	}
	if ask(ctx, p, "/debug/state", &state) != nil {
		return false
	}
	connected := 0
	for _, w := range state.Workers {
		for _, r := range w.Ranks {
			if r.Events.State == "connected" {
				connected++
			}
		}
	}
	return len(state.Workers) == len(l.prefill)+len(l.decode) && (!m.events || connected == len(l.prefill))
}

// try sends a request to each replica, with which it begins to try the model's files, and waits
// until all use them.
func (l *lab) try(ctx context.Context, sc scale) error {
	c := newClient(l.url + sc.path())
	defer c.close()
	for range l.plugins {
		if h := c.send(ctx, sc.warmUps()[0], time.Now()); h.err != nil {
			return fmt.Errorf("the first request: %w", h.err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	return stack.Await(ctx, "the plugin to use the files for texts and for messages", func() bool {
		return !slices.ContainsFunc(l.plugins, func(p *stack.Plugin) bool {
			return strings.Count(p.Log(), "files give the same tokens as its engine") != 2
		})
	})
}

// decisions returns the newest n of all replicas, and how many of them each has made.
func (l *lab) decisions(ctx context.Context, n int) ([]decision.Record, []int, error) {
	var lists [][]decision.Record
	for _, p := range l.plugins {
		var list struct{ Decisions []decision.Record }
		if err := ask(ctx, p, fmt.Sprintf("/debug/decisions?n=%d", n), &list); err != nil {
			return nil, nil, err
		}
		lists = append(lists, list.Decisions)
	}
	all, parts := newest(lists, n)
	return all, parts, nil
}

// ask reads one JSON page of a replica's.
func ask(ctx context.Context, p *stack.Plugin, path string, to any) error {
	page, err := p.Page(ctx, path)
	if err == nil {
		err = json.Unmarshal([]byte(page), to)
	}
	if err != nil {
		return fmt.Errorf("the plugin's %s: %w", path, err)
	}
	return nil
}

// close ends every process and waits until it is gone.
func (l *lab) close() {
	for _, p := range l.processes() {
		_ = p.Kill()
	}
	l.cancel()
	_ = os.RemoveAll(l.dir)
}

func (l *lab) processes() []*stack.Process {
	var out []*stack.Process
	if l.envoy != nil {
		out = append(out, l.envoy.Process)
	}
	for _, p := range l.plugins {
		out = append(out, p.Process)
	}
	if l.rival != nil {
		out = append(out, l.rival)
	}
	for _, w := range slices.Concat(l.prefill, l.decode) {
		if w != nil {
			out = append(out, w.Process)
		}
	}
	return out
}

// cpu returns the CPU time that all parts have used, this process included.
func (l *lab) cpu() (time.Duration, error) {
	sum, err := host.CPUTime(os.Getpid())
	for _, p := range l.processes() {
		d, e := host.CPUTime(p.PID())
		sum, err = sum+d, errors.Join(err, e)
	}
	return sum, err
}

// logs are the last lines of every process that has said something.
func (l *lab) logs() string {
	s := ""
	for _, p := range l.processes() {
		if text := p.Log(); text != "" {
			s += p.Name + ":\n" + text[max(0, len(text)-2000):] + "\n"
		}
	}
	return s
}

// engines are the prefill workers as [play] reads them.
func (l *lab) engines() []*enginesim.Client {
	var out []*enginesim.Client
	for _, w := range l.prefill {
		out = append(out, w.Sim)
	}
	return out
}

// prefillArgs are the flags of a prefill worker: one prompt at a time, as the
// simulation has it.
func (o *liveOptions) prefillArgs(m *liveMode, id int) []string {
	role, slow := "prefill", 1.0
	if o.whole {
		role = "aggregated"
	}
	if id <= o.slow {
		slow = 2
	}
	args := []string{
		"--role", role, "--id", strconv.Itoa(id), "--model", modelName, "--max-running", "1",
		"--page-size", strconv.Itoa(o.scale.Page), "--capacity-blocks", strconv.Itoa(o.fleet.Capacity), "--evict-blocks",
		"--prefill-base-us", number(slow * o.fleet.Overhead.Seconds() * 1e6 / o.scale.Speedup),
		"--prefill-us-per-token", number(slow * 1e6 / o.tokensPerSecond()),
		"--decode-us-per-token", "0", "--log-requests", strconv.Itoa(o.requests + 2*warmUps), "--log-body-bytes", "-1",
	}
	if m.rival != nil {
		args = append(args, "--engine", string(m.rival.engine))
	}
	args = append(args, o.tokenArgs(m)...)
	if !m.events {
		args = append(args, "--kv-events-port", "-1", "--replay-port", "-1")
	}
	return args
}

// decodeArgs are the flags of a decode worker, which takes no time and has room
// for everything.
func (o *liveOptions) decodeArgs(m *liveMode, id int) []string {
	return append(o.tokenArgs(m), []string{
		"--role", "decode", "--id", strconv.Itoa(id), "--model", modelName, "--page-size", strconv.Itoa(o.scale.Page),
		"--decode-us-per-token", "0", "--kv-events-port", "-1", "--replay-port", "-1",
		"--log-requests", "16", "--log-body-bytes", "-1",
	}...)
}

// tokenArgs are the flags that say which tokens a worker takes prompts for.
func (o *liveOptions) tokenArgs(m *liveMode) []string {
	switch {
	case o.published == nil:
		return nil
	case m.files:
		return []string{"--tokens", o.refused}
	default:
		return []string{"--tokens", o.asked}
	}
}

// reportEvery is how often workers are asked for what they run, in the trace's time: the plugin's default.
const reportEvery = 2 * time.Second

// pluginConfig is the plugin's configuration for a mode. Time-outs that a busy
// machine could run into are long: a request is to wait, not to be retried.
func (o *liveOptions) pluginConfig(m *liveMode) string {
	models := ""
	if m.files {
		models = fmt.Sprintf("models: {%s: {tokenizer: %q}}\n", modelName, o.published.folder)
	}
	if o.record != "" {
		models += fmt.Sprintf("record: {dir: %q}\n", o.record)
	}
	return models + fmt.Sprintf(`journal: %d
tokens: {mode: %s, wait: 4s}
prefill: {start_timeout: 10s, overdue_base: 60s}
engines: {report_interval: %s}
routing:
  routed_ttl: %s
  predicted_ttl: %s
  prefill: {%s}
  decode: {mode: round-robin}
  aggregated: {%s}
`, o.requests+warmUps, m.tokens, o.live(reportEvery), o.live(o.fleet.RoutedTTL), o.live(o.fleet.PredictedTTL), m.prefill, m.prefill)
}

// live returns how long something of the trace lasts live.
func (o *liveOptions) live(d time.Duration) time.Duration {
	return time.Duration(float64(d) / o.scale.Speedup)
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
