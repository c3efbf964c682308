// Command drill shows on the simulators what an answer does when its decode worker dies, with the
// module of ../module and the planner of ../plan. Run it from the repository's root.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/stack"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/prototype/plan"
)

var (
	streams   = flag.Int("streams", 200, "streams at once")
	tokens    = flag.Int("tokens", 120, "tokens of each answer")
	prompt    = flag.Int("prompt", 200, "tokens of each prompt")
	step      = flag.Int("step-us", 50000, "µs a token")
	engine    = flag.String("engine", "vllm", "vllm or sglang")
	plain     = flag.Bool("plain", false, "without the module")
	mode      = flag.String("mode", "kill", "kill, plugin, twice, cost, cases, stall, facts, real")
	duplex    = flag.Bool("duplex", false, "bodies in full duplex")
	envoyPath = flag.String("envoy", "", "Envoy's binary; default: the one on PATH, or in .tools")
	keep      = flag.Bool("log", false, "print Envoy's log")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "drill:", err)
		os.Exit(1)
	}
}

type scene struct {
	dir, bin string
	fleet    *stack.Fleet
	plugin   *stack.Plugin
	envoy    *stack.Envoy
	planner  *http.Server
	asked    atomic.Int64 // how often the planner was asked
	left     atomic.Int64 // and nobody waited for it any more
	delay    time.Duration
	dead     int // of the decode workers, the first ones
}

func run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch *mode {
	case "facts":
		return facts(ctx)
	case "real":
		return inReal(ctx)
	}
	s, err := open(ctx)
	if s != nil {
		defer s.close()
	}
	if err != nil {
		return err
	}
	switch *mode {
	case "kill", "plugin", "twice":
		return s.kill(ctx)
	case "cost":
		return s.cost(ctx)
	case "cases":
		return s.cases(ctx)
	case "stall":
		return s.stall(ctx)
	}
	return fmt.Errorf("mode %q", *mode)
}

// open starts workers, plugin, planner and Envoy.
func open(ctx context.Context) (*scene, error) {
	root, err := stack.Root()
	if err != nil {
		return nil, err
	}
	s := &scene{}
	if err := s.prepare(ctx, root); err != nil {
		return s, err
	}
	return s, s.start(ctx)
}

// prepare makes the scene's folder, with the commands and the module in it.
func (s *scene) prepare(ctx context.Context, root string, more ...string) (err error) {
	if s.dir, err = os.MkdirTemp("", "goeson"); err != nil {
		return err
	}
	s.bin = filepath.Join(s.dir, "bin")
	over, err := overlay(root, s.dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.bin, 0o755); err != nil {
		return err
	}
	if err := stack.Build(s.bin, "", false, append(more, "./cmd/extproc")...); err != nil {
		return err
	}
	module := filepath.Join(s.dir, "libgoeson.so")
	for _, c := range [][]string{
		{"go", "build", "-overlay", over, "-o", filepath.Join(s.bin, "enginesim"), "./cmd/enginesim"},
		{"gcc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", module, filepath.Join(root, "prototype/module/goeson.c")},
	} {
		if out, err := exec.CommandContext(ctx, c[0], c[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", c, err, out)
		}
	}
	return os.Setenv("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", s.dir) // Envoy's own, to find modules
}

// start starts workers, planner, plugin and Envoy.
func (s *scene) start(ctx context.Context) (err error) {
	s.fleet, err = stack.StartFleet(ctx, s.bin, stack.FleetOptions{
		Engine: worker.Engine(*engine), Prefills: 2, Decodes: 3,
		Args:       []string{"--model=m", "--max-running=100000"},
		DecodeArgs: []string{"--decode-us-per-token=" + strconv.Itoa(*step)},
	})
	if err != nil {
		return err
	}
	if err := s.publish(1); err != nil {
		return err
	}
	s.plugin, err = stack.StartPlugin(ctx, stack.PluginOptions{BinDir: s.bin, Dir: s.dir, Workers: filepath.Join(s.dir, "workers.yaml")})
	if err != nil {
		return err
	}
	return s.proxy(ctx)
}

// plan starts the planner.
func (s *scene) plan() (port int, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	s.planner = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		if s.delay > 0 {
			b, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(b))
			select {
			case <-time.After(s.delay):
			case <-r.Context().Done():
				s.left.Add(1)
				return
			}
		}
		plan.Handler(w, r)
	})}
	go func() { _ = s.planner.Serve(l) }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// proxy starts the planner, and Envoy with the module.
func (s *scene) proxy(ctx context.Context) error {
	port, err := s.plan()
	if err != nil {
		return err
	}
	path, err := stack.FindEnvoy(*envoyPath)
	if err != nil {
		return err
	}
	o := stack.EnvoyOptions{Path: path, Dir: s.dir, LogLevel: "info", Params: envoy.Params{PluginSocket: s.plugin.Socket, FullDuplex: *duplex}}
	if o.Config, err = o.Render(ctx); err != nil {
		return err
	}
	if !*plain {
		o.Config = []byte(patch(string(o.Config), port))
	}
	s.envoy, err = stack.StartEnvoy(ctx, o)
	return err
}

// patch puts the module before the client listener's router.
func patch(config string, port int) string {
	const router = "          http_filters:\n          - name: envoy.filters.http.router\n"
	config = strings.Replace(config, router, `          http_filters:
          - name: goeson
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
              dynamic_module_config: {name: goeson}
              filter_name: goeson
              filter_config: {"@type": type.googleapis.com/google.protobuf.StringValue, value: "main_leg,planner"}
`+strings.TrimPrefix(router, "          http_filters:\n"), 1)
	return strings.Replace(config, "  clusters:\n", fmt.Sprintf(`  clusters:
  - name: planner
    type: STATIC
    connect_timeout: 0.25s
    load_assignment:
      cluster_name: planner
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}]}]
`, port), 1)
}

// publish lists the prefill workers and the first n decode workers that live.
func (s *scene) publish(n int) error {
	n += s.dead
	var infos []*worker.Worker
	for _, w := range slices.Concat(s.fleet.Prefills, s.fleet.Decodes[s.dead:n]) {
		infos = append(infos, w.Info)
	}
	return file.Write(filepath.Join(s.dir, "workers.yaml"), infos)
}

func (s *scene) close() {
	var errs []error
	if s.envoy != nil {
		if *keep {
			fmt.Println(s.envoy.Log())
		}
		errs = append(errs, s.envoy.Kill())
	}
	if s.plugin != nil {
		errs = append(errs, s.plugin.Kill())
	}
	if s.fleet != nil {
		errs = append(errs, s.fleet.Kill())
	}
	if s.planner != nil {
		errs = append(errs, s.planner.Close())
	}
	_ = os.RemoveAll(s.dir)
	if err := errors.Join(errs...); err != nil {
		fmt.Println("close:", err)
	}
}

func prompts(n, length int) [][]uint32 {
	out := make([][]uint32, n)
	for i := range out {
		out[i] = make([]uint32, length)
		for j := range out[i] {
			out[i][j] = 20 + rand.Uint32N(200000)
		}
	}
	return out
}

func body(prompt []uint32, tokens int, more string) string {
	ids, _ := json.Marshal(prompt)
	return fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":%d,"stream":true,"temperature":0,"return_token_ids":true,"stream_options":{"include_usage":true}%s}`, ids, tokens, more)
}

// known waits until the plugin serves with n decode workers.
func (s *scene) known(ctx context.Context, n int) error {
	if err := s.publish(n); err != nil {
		return err
	}
	for range 200 {
		resp, err := http.Get(s.plugin.Admin + "/metrics")
		if err != nil {
			return err
		}
		b := make([]byte, 4<<20)
		total := 0
		for {
			k, err := resp.Body.Read(b[total:])
			total += k
			if err != nil {
				break
			}
		}
		_ = resp.Body.Close()
		for line := range strings.SplitSeq(string(b[:total]), "\n") {
			if strings.HasPrefix(line, "baton_workers{") && strings.Contains(line, `role="decode"`) && strings.HasSuffix(line, " "+strconv.Itoa(n)) {
				return nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	fmt.Println("the plugin did not say that it knows", n, "decode workers")
	return nil
}

// kill runs streams on one decode worker, lets another be known, and kills the first when all
// answers are under way, at about a third of them.
func (s *scene) kill(ctx context.Context) error {
	ps := prompts(*streams, *prompt)
	results := make([]*result, *streams)
	var begun atomic.Int64
	var wg sync.WaitGroup
	for i := range ps {
		wg.Add(1)
		go func() {
			defer wg.Done()
			results[i] = ask(ctx, s.envoy.URL, "/v1/completions", body(ps[i], *tokens, ""), func(n int) {
				if n == max(2, *tokens/4) {
					begun.Add(1)
				}
			})
		}()
	}
	for begun.Load() < int64(*streams) {
		time.Sleep(5 * time.Millisecond)
	}
	if err := s.known(ctx, 2); err != nil {
		return err
	}
	if *mode == "plugin" {
		_ = s.planner.Close()
		_ = s.plugin.Kill()
	}
	t := time.Now()
	_ = s.fleet.Decodes[0].Kill()
	fmt.Printf("killed at %s\n", t.Format(time.TimeOnly))
	if *mode == "twice" {
		time.Sleep(time.Second + time.Duration(*step**tokens/8)*time.Microsecond)
		s.dead = 1
		if err := s.publish(2); err != nil {
			return err
		}
		time.Sleep(time.Second)
		_ = s.fleet.Decodes[1].Kill()
	}
	wg.Wait()
	s.report(results, ps)
	again, prompt, cached := 0, 0, 0 // what prefill had to compute for the continuations
	for _, w := range s.fleet.Prefills {
		rs, err := w.Sim.Requests(ctx, 0)
		if err != nil {
			return err
		}
		for _, r := range rs {
			if r.Started.After(t) {
				again, prompt, cached = again+1, prompt+r.PromptTokens, cached+r.CachedTokens
			}
		}
	}
	fmt.Printf("continuations at prefill: %d, of %d prompt tokens %d were cached\n", again, prompt, cached)
	return nil
}

func (s *scene) report(results []*result, ps [][]uint32) {
	whole := 0
	wrong := map[string]int{}
	var gaps, late []time.Duration
	for i, r := range results {
		w := r.wrong(ps[i], *tokens)
		if w == "" {
			whole++
			gaps = append(gaps, r.gap())
		} else {
			if at := strings.Index(w, " after "); at > 0 {
				w = w[:at] + fmt.Sprintf(", error events %d, done %d", r.errors, r.done)
			}
			wrong[w]++
		}
		late = append(late, r.late...)
	}
	fmt.Printf("%d of %d whole; planner asked %d times; longest gap p50 %s p99 %s max %s; event p50 %s p99 %s\n",
		whole, len(results), s.asked.Load(), at(gaps, 50), at(gaps, 99), at(gaps, 100), at(late, 50), at(late, 99))
	for w, n := range wrong {
		fmt.Printf("  %d: %s\n", n, w)
	}
}

func at(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Clone(d)
	slices.Sort(d)
	return d[min(len(d)-1, len(d)*p/100)].Round(time.Microsecond)
}

// cost runs the streams to their ends and says what Envoy and plugin have spent.
func (s *scene) cost(ctx context.Context) error {
	ps := prompts(*streams, *prompt)
	results := make([]*result, *streams)
	envoyWas, pluginWas := cpu(s.envoy.PID()), cpu(s.plugin.PID())
	var wg sync.WaitGroup
	for i := range ps {
		wg.Add(1)
		go func() {
			defer wg.Done()
			results[i] = ask(ctx, s.envoy.URL, "/v1/completions", body(ps[i], *tokens, ""), nil)
		}()
	}
	wg.Wait()
	events := 0
	for _, r := range results {
		events += len(r.events)
	}
	e, p := cpu(s.envoy.PID())-envoyWas, cpu(s.plugin.PID())-pluginWas
	fmt.Printf("module %t: %d events; CPU an event: Envoy %.1f µs, plugin %.1f µs; Envoy's memory %d KiB\n", !*plain, events,
		float64(e.Microseconds())/float64(events), float64(p.Microseconds())/float64(events), rss(s.envoy.PID()))
	s.report(results, ps)
	return nil
}

func cpu(pid int) time.Duration {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	u, _ := strconv.Atoi(f[11])
	k, _ := strconv.Atoi(f[12])
	return time.Duration(u+k) * 10 * time.Millisecond
}

func rss(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.SplitSeq(string(b), "\n") {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, _ := strconv.Atoi(strings.Fields(v)[0])
			return n
		}
	}
	return 0
}
