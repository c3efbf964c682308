// Command rivals is `make bench-path-rivals`: what a request costs through Baton and through
// what people run in its place, in one run on one machine.
//
// Systems, each with workers that answer at once:
//
//	envoy           plain Envoy, one leg
//	nothing         Baton's configuration that mirrors, with a server that decides nothing
//	baton-one       Baton in the shipped configuration, one worker that serves alone
//	baton           … a prefill and a decode worker of SGLang, which meet
//	baton-first     … of vLLM, whose decode needs prefill's answer
//	sglang-gateway  SGLang's gateway, prefill and decode apart
//	vllm-router     vLLM's router, prefill first
//
// Method. Everything is started once. The systems take turns, one slice each, and the median
// of the slices is told. Clients are closed loops. CPU is that of all processes of a system.
// It listens on loopback alone, ends by itself, and takes every process that it started with it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/test/bench/host"
	"github.com/seed-60ae5743/baton/test/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := bench{}
	flag.StringVar(&b.python, "python", "", "Python's `program` with sglang-router and vllm-router; empty: without them")
	flag.IntVar(&b.repeats, "repeats", 9, "slices of each case")
	flag.DurationVar(&b.slice, "duration", 700*time.Millisecond, "length of a slice")
	flag.Parse()
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "rivals:", err)
		os.Exit(1)
	}
}

type bench struct {
	bin, envoy, python string
	repeats            int
	slice              time.Duration
	dir                string
	decode, prefill    string // addresses
}

// system is what one case asks.
type system struct {
	name, addr string
	pids       []int
}

// load is how a system is asked.
type load struct{ bytes, clients int }

var loads = []load{{2 << 10, 1}, {2 << 10, 16}, {220 << 10, 16}}

func (b *bench) run(ctx context.Context) error {
	var err error
	b.dir, err = os.MkdirTemp("", "rivals")
	if err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	b.envoy, err = stack.FindEnvoy(os.Getenv("ENVOY"))
	if err != nil {
		return err
	}
	b.bin = b.folder("bin")
	if err := stack.Build(b.bin, "", false, "./cmd/extproc", "./test/bench/nothing"); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.decode, err = startWorker(ctx)
	if err != nil {
		return err
	}
	b.prefill, err = startWorker(ctx)
	if err != nil {
		return err
	}
	systems, err := b.start(ctx)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "bytes\tclients\tsystem\tp50 ms\tp99 ms\tCPU µs\trequests/s\t")
	for _, l := range loads {
		turns := make([][]figures, len(systems))
		for range b.repeats {
			for i, s := range systems {
				f, err := s.measure(ctx, l, b.slice)
				if err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				turns[i] = append(turns[i], f)
			}
		}
		for i, s := range systems {
			of := func(get func(figures) float64) float64 {
				var all []float64
				for _, f := range turns[i] {
					all = append(all, get(f))
				}
				return stats.Median(all)
			}
			fmt.Fprintf(t, "%d\t%d\t%s\t%.2f\t%.2f\t%.0f\t%.0f\t\n", l.bytes, l.clients, s.name,
				of(func(f figures) float64 { return f.p50 }), of(func(f figures) float64 { return f.p99 }),
				of(func(f figures) float64 { return f.cpu }), of(func(f figures) float64 { return f.rate }))
		}
	}
	return t.Flush()
}

// start starts every system.
func (b *bench) start(ctx context.Context) (out []*system, err error) {
	add := func(s *system, e error) {
		if err == nil {
			err = e
		}
		out = append(out, s)
	}
	add(b.plain(ctx))
	add(b.nothing(ctx))
	add(b.baton(ctx, "baton-one", `- {id: 2, role: aggregated, engine: sglang, models: [tiny], endpoint: "`+b.decode+`", block_size: 64}`))
	add(b.baton(ctx, "baton", `- {id: 1, role: prefill, engine: sglang, models: [tiny], endpoint: "`+b.prefill+`", block_size: 64, bootstrap: {host: 127.0.0.1, port: 8998}}
- {id: 2, role: decode, engine: sglang, models: [tiny], endpoint: "`+b.decode+`", block_size: 64}`))
	add(b.baton(ctx, "baton-first", `- {id: 1, role: prefill, engine: vllm, models: [tiny], endpoint: "`+b.prefill+`", block_size: 64}
- {id: 2, role: decode, engine: vllm, models: [tiny], endpoint: "`+b.decode+`", block_size: 64}`))
	if b.python != "" {
		add(b.router(ctx, "sglang-gateway", "sglang_router.launch_router", "--pd-disaggregation", "--policy", "random", "--disable-health-check",
			"--prefill", "http://"+b.prefill, "8998", "--decode", "http://"+b.decode))
		add(b.router(ctx, "vllm-router", "vllm_router.launch_router", "--vllm-pd-disaggregation", "--policy", "consistent_hash",
			"--prefill", "http://"+b.prefill, "--decode", "http://"+b.decode))
	}
	return out, err
}

func (b *bench) plain(ctx context.Context) (*system, error) {
	ports, err := stack.FreePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	return b.envoyOf(ctx, "envoy", ports[0], envoy.Params{}, stack.PlainConfig(filepath.Join(b.folder("envoy"), "envoy.sock"), ports[0], b.decode))
}

func (b *bench) folder(name string) string {
	dir := filepath.Join(b.dir, name)
	_ = os.MkdirAll(dir, 0o755)
	return dir
}

// envoyOf starts an Envoy with one thread.
func (b *bench) envoyOf(ctx context.Context, name string, port int, p envoy.Params, config []byte, with ...int) (*system, error) {
	if config == nil {
		var err error
		p.ClientPort, p.AdminSocket = port, filepath.Join(b.folder(name), "envoy.sock")
		config, err = envoy.Standalone(p)
		if err != nil {
			return nil, err
		}
	}
	e, err := stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: b.envoy, Dir: b.folder(name), Config: config, Concurrency: 1, LogLevel: "error"})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &system{name: name, addr: "127.0.0.1:" + strconv.Itoa(port), pids: append(with, e.PID())}, nil
}

func (b *bench) nothing(ctx context.Context) (*system, error) {
	ports, err := stack.FreePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	dir := b.folder("nothing")
	socket := filepath.Join(dir, "nothing.sock")
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "nothing"), "-socket", socket, "-stats", filepath.Join(dir, "stats"), "-decode", b.decode, "-prefill", b.prefill)
	if _, err := cmd.StdinPipe(); err != nil { // it ends with its standard input
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("nothing: %w", err)
	}
	if err := stack.Await(ctx, "the do-nothing server to listen", func() bool { _, err := os.Stat(socket); return err == nil }); err != nil {
		return nil, err
	}
	return b.envoyOf(ctx, "nothing", ports[0], envoy.Params{PluginSocket: socket, Mirrors: true}, nil, cmd.Process.Pid)
}

func (b *bench) baton(ctx context.Context, name, workers string) (*system, error) {
	ports, err := stack.FreePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	dir := b.folder(name)
	file := filepath.Join(dir, "workers.yaml")
	if err := os.WriteFile(file, []byte("workers:\n"+workers+"\n"), 0o600); err != nil {
		return nil, err
	}
	p, err := stack.StartPlugin(ctx, stack.PluginOptions{BinDir: b.bin, Dir: dir, Workers: file, Config: "tokens: {mode: estimate}\n"})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b.envoyOf(ctx, name, ports[0], envoy.Params{PluginSocket: p.Socket}, nil, p.PID())
}

// router starts a rival that is a Python package.
func (b *bench) router(ctx context.Context, name, module string, args ...string) (*system, error) {
	ports, err := stack.FreePorts(ctx, 2)
	if err != nil {
		return nil, err
	}
	addr := "127.0.0.1:" + strconv.Itoa(ports[0])
	cmd := exec.CommandContext(ctx, b.python, append([]string{"-m", module, "--host", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--prometheus-port", strconv.Itoa(ports[1])}, args...)...)
	log, err := os.Create(filepath.Join(b.folder(name), "log"))
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s := &system{name: name, addr: addr, pids: []int{cmd.Process.Pid}}
	wait, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	err = stack.Await(wait, name+" to serve", func() bool { return ask(wait, http.DefaultClient, s.addr, body(2<<10)) == nil })
	if err != nil {
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%w\n%s", err, text[max(0, len(text)-2000):])
	}
	return s, nil
}

// startWorker serves as any engine's worker: it answers at once, with no usage, which would have
// to be right.
func startWorker(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	const answer = `{"id":"c","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"length"}],` +
		`"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[1],"remote_engine_id":"e","remote_host":"127.0.0.1","remote_port":5600}}`
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("content-type", "application/json")
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"tiny","object":"model"}],"model_path":"tiny"}`)
			return
		}
		_, _ = io.WriteString(w, answer)
	})}
	go func() { _ = srv.Serve(l) }()
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	return l.Addr().String(), nil
}

func body(size int) string {
	const head, tail = `{"model":"tiny","messages":[{"role":"user","content":"`, `"}],"max_tokens":64}`
	return head + strings.Repeat("word ", max(0, size-len(head)-len(tail))/5) + tail
}

func ask(ctx context.Context, c *http.Client, addr, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("content-type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", resp.Status, text)
	}
	return err
}

// figures are those of one slice; times in ms, CPU in µs a request.
type figures struct{ p50, p99, cpu, rate float64 }

func (s *system) cpu() (sum time.Duration, err error) {
	for _, pid := range s.pids {
		t, err := host.CPUTime(pid)
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// measure asks for the time of a slice, after a tenth of it.
func (s *system) measure(ctx context.Context, l load, slice time.Duration) (figures, error) {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: l.clients}}
	defer c.CloseIdleConnections()
	if _, _, err := s.crowd(ctx, c, l, slice/10); err != nil {
		return figures{}, err
	}
	before, err := s.cpu()
	if err != nil {
		return figures{}, err
	}
	took, lasted, err := s.crowd(ctx, c, l, slice)
	if err != nil {
		return figures{}, err
	}
	after, err := s.cpu()
	if err != nil {
		return figures{}, err
	}
	slices.Sort(took)
	n := float64(len(took))
	ms := func(q float64) float64 { return stats.Micros(stats.Quantile(took, q)) / 1000 }
	return figures{p50: ms(0.5), p99: ms(0.99), cpu: stats.Micros(after-before) / n, rate: n / lasted.Seconds()}, nil
}

// crowd has the clients ask one request after the other, and returns what each took.
func (s *system) crowd(ctx context.Context, c *http.Client, l load, d time.Duration) (took []time.Duration, lasted time.Duration, failed error) {
	text, began := body(l.bytes), time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range l.clients {
		wg.Go(func() {
			for time.Since(began) < d {
				at := time.Now()
				err := ask(ctx, c, s.addr, text)
				mu.Lock()
				took = append(took, time.Since(at))
				if err != nil && failed == nil {
					failed = err
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return took, time.Since(began), failed
}
