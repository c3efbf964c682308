package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// The names of what is compared.
const (
	aloneServer      = "alone"
	directServer     = "direct"
	nothingServer    = "nothing"
	batonServer      = "baton"
	syncServer       = "baton-sync"
	roundRobinServer = "baton-round-robin"
	unreadServer     = "baton-stream-unread" // streamed answers, whose first events nobody reads
	streamServer     = "baton-stream"        // and with them held until the first token

	buffered   = "buffered"
	fullDuplex = "full-duplex"

	modelName = "bench"

	// defaultStep lets a decode worker answer as soon as its prefill has come.
	// A real one takes longer, which can only hide what the plugin does in
	// the meantime: it reads the prefill leg's answer.
	defaultStep = time.Duration(0)
)

// plugins are the configurations of the plugin that are measured.
func plugins() map[string]string {
	const routed = "tokens: {mode: estimate}\nrouting: {prefill: {mode: kv}, decode: {mode: kv}}\n"
	return map[string]string{
		batonServer:      routed,
		syncServer:       routed,
		streamServer:     routed,
		unreadServer:     routed + "answer: {first_token: off}\n",
		roundRobinServer: "tokens: {mode: off}\nrouting: {prefill: {mode: round-robin}, decode: {mode: round-robin}}\n",
	}
}

// variant is one case: an Envoy, and the server behind it.
type variant struct {
	server  *server      // nil: Envoy alone, or nothing at all
	name    string       // of the server
	mode    string       // "" without a server
	addr    string       // where clients reach it; direct: decode
	prefill string       // direct: where clients ask first
	envoy   *stack.Envoy // nil: direct
}

func (v *variant) String() string { return strings.TrimPrefix(v.mode+" "+v.name, " ") }

// crowd returns clients of this case. The caller closes it.
func (v *variant) crowd(l load) crowd {
	if v.prefill != "" {
		return newDirectCrowd(v.prefill, v.addr, l.clients, l.bytes)
	}
	if v.name == streamServer || v.name == unreadServer {
		return newCrowd(v.addr, l.clients, l.bytes, streamed)
	}
	return newCrowd(v.addr, l.clients, l.bytes, wanted)
}

// lab is everything that runs while cases are compared.
type lab struct {
	dir, bin, envoyPath string
	place               placement
	step                time.Duration
	pair                *child
	decode, prefill     netip.AddrPort
	handOver            netip.AddrPort // prefill whose answer decode needs
	streaming           netip.AddrPort // decode that streams
	variants            []*variant
	closers             []func()
}

// placement says which processors the parts may use; empty: all.
type placement struct{ envoy, servers, ends []int }

// place returns the placement of that name on the given processors.
func place(name string, on []int) (placement, error) {
	switch n := len(on); {
	case name == "shared" || name == "auto" && n < 4:
		return placement{}, nil
	case name == "auto" || name == "split" && n >= 4:
		return placement{envoy: on[:1], servers: on[1 : n/2], ends: on[n/2:]}, nil
	case name == "split" && n >= 2:
		return placement{envoy: on[:1], servers: on[1:], ends: on[1:]}, nil
	case name == "split":
		return placement{}, fmt.Errorf("place %s: expected at least 2 processors, found %d", name, n)
	default:
		return placement{}, fmt.Errorf("place %q: expected auto, shared or split", name)
	}
}

// open starts everything; what it has started ends with close, also after an
// error.
func (l *lab) open(ctx context.Context, servers, modes []string) error {
	if err := l.startWorkers(ctx); err != nil {
		return err
	}
	if err := l.startEnvoy(ctx, &variant{name: aloneServer}); err != nil {
		return err
	}
	for _, name := range servers {
		// Legs of the plugin's own go to the Envoy beside it: one for each.
		shares := [][]string{modes}
		if name == syncServer {
			l.variants = append(l.variants, &variant{name: directServer, addr: l.decode.String(), prefill: l.handOver.String()})
		}
		if name != nothingServer {
			shares = slices.Collect(slices.Chunk(modes, 1))
		}
		for _, share := range shares {
			if err := l.openServer(ctx, name, share); err != nil {
				return err
			}
		}
	}
	return nil
}

// openServer starts one server with an Envoy for each of the modes.
func (l *lab) openServer(ctx context.Context, name string, modes []string) error {
	s, err := l.startServer(ctx, name, filepath.Join(l.dir, name+"-"+modes[0]))
	if err != nil {
		return err
	}
	l.closers = append(l.closers, s.stop)
	if err := s.calibrate(ctx); err != nil {
		return err
	}
	for _, mode := range modes {
		if err := l.startEnvoy(ctx, &variant{name: name, mode: mode, server: s}); err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) close() {
	for i := len(l.closers) - 1; i >= 0; i-- {
		l.closers[i]()
	}
	l.closers = nil
}

func (l *lab) startWorkers(ctx context.Context) error {
	err := placed(l.place.ends, func() (err error) {
		l.pair, err = startChild(ctx, filepath.Join(l.bin, "constant"), "-step", l.step.String())
		return err
	})
	if err != nil {
		return err
	}
	l.closers = append(l.closers, l.pair.stop)
	line, err := l.pair.stdout.ReadString('\n')
	if err != nil {
		return fmt.Errorf("the workers' first line: %w", err)
	}
	to := []*netip.AddrPort{&l.decode, &l.prefill, &l.handOver, &l.streaming}
	words := strings.Fields(line)
	if len(words) != len(to) {
		return fmt.Errorf("the workers' first line %q: expected %d addresses", line, len(to))
	}
	for i, word := range words {
		*to[i], err = netip.ParseAddrPort(word)
		if err != nil {
			return fmt.Errorf("the workers' first line: %w", err)
		}
	}
	return nil
}

func (l *lab) startServer(ctx context.Context, name, dir string) (s *server, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	err = placed(l.place.servers, func() error {
		if name == nothingServer {
			s, err = startNothing(ctx, l.bin, dir, l.decode.String(), l.prefill.String())
			return err
		}
		s, err = l.startPlugin(ctx, name, dir)
		return err
	})
	return s, err
}

// startPlugin runs the plugin as it is shipped, with its profiler on. (It
// costs nothing until a profile is taken.)
func (l *lab) startPlugin(ctx context.Context, name, dir string) (*server, error) {
	workers := filepath.Join(dir, "workers.yaml")
	if err := l.writeWorkers(workers, name); err != nil {
		return nil, err
	}
	ports, err := stack.FreePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "bench.yaml")
	socket := filepath.Join(dir, "extproc.sock")
	text := fmt.Sprintf("listen: %q\nadmin: {listen: \"127.0.0.1:%d\", pprof: true}\ndiscovery: {file: %q}\n%s",
		"unix://"+socket, ports[0], workers, plugins()[name])
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	p, err := stack.StartPlugin(ctx, stack.PluginOptions{
		BinDir: l.bin, Dir: dir, Workers: workers, Args: []string{"--config", config}, NotWait: true,
	})
	if err != nil {
		return nil, err
	}
	s := &server{
		name: name, pid: p.PID(), socket: socket, admin: fmt.Sprintf("http://127.0.0.1:%d", ports[0]),
		stop: func() { _ = p.Stop(3 * time.Second) },
	}
	s.totals = func(ctx context.Context) (totals, error) { return goMetrics(ctx, s.admin) }
	wait, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	err = stack.Await(wait, "the plugin to be ready", func() bool {
		_, err := stack.Get(wait, s.admin+"/readyz")
		return err == nil || p.Err() != nil
	})
	if err == nil {
		err = p.Err()
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("%w\n%s", err, p.Log())
	}
	return s, nil
}

// writeWorkers lists a decode and a prefill worker for the server: vLLM's if prefill
// comes first; else SGLang's, prefill with a rendezvous address, so that the plugin
// has to inject fields on both legs; nobody connects to it.
func (l *lab) writeWorkers(path, server string) error {
	var ws []*worker.Worker
	engine, decode, prefill := worker.SGLang, l.decode, l.prefill
	prefillFirst := server == syncServer
	switch server {
	case syncServer:
		engine, prefill = worker.VLLM, l.handOver
	case streamServer, unreadServer:
		decode = l.streaming
	}
	for i, at := range []netip.AddrPort{decode, prefill} {
		ep, err := worker.ParseEndpoint(at.String())
		if err != nil {
			return err
		}
		w := &worker.Worker{
			ID: worker.ID(i + 1), Role: worker.Decode, Engine: engine, Models: []string{modelName},
			Endpoint: ep, DPSize: 1, BlockSize: 64, CapacityBlocks: 1 << 20,
		}
		if i == 1 {
			w.Role = worker.Prefill
		}
		if i == 1 && !prefillFirst {
			w.Bootstrap = worker.Bootstrap{Host: "127.0.0.1", Port: 8998}
		}
		ws = append(ws, w)
	}
	return file.Write(path, ws)
}

// startEnvoy runs one Envoy for v and adds v to the variants.
func (l *lab) startEnvoy(ctx context.Context, v *variant) error {
	dir := filepath.Join(l.dir, strings.ReplaceAll("envoy "+v.String(), " ", "-"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	ports, err := stack.FreePorts(ctx, 1)
	if err != nil {
		return err
	}
	p := envoy.Params{ClientPort: ports[0], AdminSocket: filepath.Join(dir, "envoy.sock"), FullDuplex: v.mode == fullDuplex}
	p.Mirrors = v.server == nil || v.name == nothingServer // who does nothing sends no leg
	p.PluginSocket = filepath.Join(dir, "none.sock")       // and the prefill listener's beside it: the default folder may not exist
	if v.server != nil {
		p.PluginSocket = v.server.socket
	}
	config, err := envoy.Standalone(p)
	if err == nil && v.server == nil {
		config, err = alone(config, l.decode, l.prefill)
	}
	if err != nil {
		return err
	}
	err = placed(l.place.envoy, func() (err error) {
		v.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: l.envoyPath, Dir: dir, Config: config, Concurrency: 1, LogLevel: "error"})
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", v, err)
	}
	l.closers = append(l.closers, func() { _ = v.envoy.Stop(3 * time.Second) })
	v.addr = strings.TrimPrefix(v.envoy.URL, "http://")
	l.variants = append(l.variants, v)
	return nil
}
