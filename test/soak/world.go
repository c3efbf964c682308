package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// leaseTTL is how long a worker that died stays known. etcd grants no less than
// a second.
const leaseTTL = 2 * time.Second

// lanes are the two ways in: an Envoy and its plugin each, one in buffered and
// one in full duplex mode, over the same workers.
const lanes = 2

// pluginConfig is the plugin's: aggregated serving is not allowed, so that a
// decode worker that gets a request without its parameters is always wrong, and
// what is meant to take minutes takes seconds.
var pluginConfig = fmt.Sprintf(`enforce_disagg: true
drain_timeout: 3s
request: {default_timeout: %s}
prefill: {orphan_grace: 1s}
`, defaultTimeout)

// world is everything that runs. Its methods may be called concurrently but for
// open and close.
type world struct {
	binDir, dir, envoyPath string
	models                 []model
	members                []*member
	lanes                  []*lane
	etcd                   *stack.Etcd // nil without etcd
	etcdChange             sync.Mutex  // held by who stops or starts it

	nextID atomic.Uint64
	fileMu sync.Mutex // held by who writes the file of workers
	events *record
}

// member is a place where a worker runs; who runs there changes.
type member struct {
	on     target
	model  model
	change sync.Mutex // held by who stops, starts, breaks or inspects it
	read   uint64     // guarded by change: requests of its log that were looked at
	told   int        // guarded by change: broken rules that were told

	mu       sync.Mutex
	worker   *stack.Worker     // guarded by mu
	control  *enginesim.Client // guarded by mu: answers whatever is broken
	register *stack.Register   // guarded by mu; nil without etcd
	unlisted bool              // guarded by mu: it has left the file
	address  string            // guarded by mu
	meet     string            // guarded by mu: SGLang's bootstrap server, which moves with the address
}

func (m *member) now() (*stack.Worker, *enginesim.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.worker, m.control
}

// lane is one Envoy with its plugin.
type lane struct {
	index      int
	fullDuplex bool
	dir        string
	client     *http.Client
	ports      []int // of Envoy: clients'

	change sync.Mutex // held by who stops or starts a part of it

	mu     sync.Mutex
	plugin *stack.Plugin // guarded by mu
	envoy  *stack.Envoy  // guarded by mu
}

func (l *lane) now() (*stack.Plugin, *stack.Envoy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.plugin, l.envoy
}

// open starts everything and returns once each part is up.
func (w *world) open(ctx context.Context) error {
	etcd := false
	for _, m := range w.models {
		etcd = etcd || m.Etcd
		for i := range m.Prefills + m.Decodes {
			on := target{Model: m.Name, Role: worker.Prefill, Index: i}
			if i >= m.Prefills {
				on.Role, on.Index = worker.Decode, i-m.Prefills
			}
			w.members = append(w.members, &member{on: on, model: m})
		}
	}
	if etcd {
		var err error
		w.etcd, err = stack.StartEtcd(ctx, stack.EtcdOptions{BinDir: w.binDir, Dir: filepath.Join(w.dir, "etcd")})
		if err != nil {
			return err
		}
	}
	var g errgroup.Group
	for _, m := range w.members {
		g.Go(func() error { return w.startWorker(ctx, m, true) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := w.list(); err != nil {
		return err
	}
	for i := range lanes {
		l := &lane{index: i, fullDuplex: i%2 == 1, dir: filepath.Join(w.dir, "lane"+strconv.Itoa(i))}
		l.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
		w.lanes = append(w.lanes, l)
		if err := os.MkdirAll(l.dir, 0o700); err != nil {
			return fmt.Errorf("soak: %w", err)
		}
		var err error
		l.ports, err = stack.FreePorts(ctx, 1)
		if err != nil {
			return err
		}
		if err := errors.Join(w.startPlugin(ctx, l), w.startEnvoy(ctx, l)); err != nil {
			return err
		}
	}
	return nil
}

// startWorker runs a new engine under a new id, at the address of the one before
// or, with move, at another. Its register is left alone if it runs.
func (w *world) startWorker(ctx context.Context, m *member, move bool) error {
	ports, err := stack.FreePorts(ctx, 3)
	if err != nil {
		return err
	}
	address, meet := m.address, m.meet
	if move {
		address, meet = fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[2])
	}
	control := fmt.Sprintf("127.0.0.1:%d", ports[1])
	args := []string{
		"--role", m.on.Role.String(), "--engine", string(m.model.Engine), "--model", m.model.Name,
		"--id", strconv.FormatUint(1000+w.nextID.Add(1), 10), "--listen", address, "--control-listen", control,
		"--log-requests", "20000", "--heartbeat-interval", "300ms", "--waiting-timeout", "10s", "--bootstrap-timeout", "10s",
		"--kv-lease", "10s", "--pull-timeout", "1s", "--poison", poison, "--prefill-base-us", "4000", "--decode-us-per-token", "3000",
	}
	if m.model.Engine == worker.SGLang && m.on.Role == worker.Prefill {
		args = append(args, "--bootstrap-listen", meet)
	}
	started, err := stack.StartWorker(ctx, w.binDir, args...)
	if err != nil {
		return err
	}
	m.read, m.told = 0, 0
	m.mu.Lock()
	m.worker, m.address, m.meet, m.unlisted = started, address, meet, false
	m.control = &enginesim.Client{BaseURL: "http://" + control, HTTP: &http.Client{Timeout: time.Second}}
	registered := m.register != nil && m.register.Alive()
	m.mu.Unlock()
	if !m.model.Etcd || registered {
		return nil
	}
	return w.startRegister(ctx, m)
}

func (w *world) startRegister(ctx context.Context, m *member) error {
	r, err := stack.StartRegister(ctx, stack.RegisterOptions{
		BinDir: w.binDir, EngineURL: "http://" + m.address, Etcd: w.etcd.Endpoints, TTL: leaseTTL,
		Args: []string{
			"--role", m.on.Role.String(), "--health-interval", "250ms", "--health-timeout", "1s",
			"--drain-settle", "100ms", "--drain-timeout", "5s",
		},
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.register = r
	return nil
}

// list writes the discovery file: the workers that are not found in etcd.
func (w *world) list() error {
	w.fileMu.Lock()
	defer w.fileMu.Unlock()
	infos := []*worker.Worker{}
	for _, m := range w.members {
		m.mu.Lock()
		if !m.model.Etcd && !m.unlisted && m.worker != nil {
			infos = append(infos, m.worker.Info)
		}
		m.mu.Unlock()
	}
	return file.Write(filepath.Join(w.dir, "workers.yaml"), infos)
}

func (w *world) startPlugin(ctx context.Context, l *lane) error {
	o := stack.PluginOptions{
		BinDir: w.binDir, Dir: l.dir, Workers: filepath.Join(w.dir, "workers.yaml"), Config: pluginConfig, Pprof: true,
		Args: []string{"--discovery-cache", filepath.Join(l.dir, "last.yaml")},
	}
	if w.etcd != nil {
		o.Etcd = w.etcd.Endpoints
	}
	p, err := stack.StartPlugin(ctx, o)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plugin = p
	return nil
}

func (w *world) startEnvoy(ctx context.Context, l *lane) error {
	plugin, _ := l.now()
	e, err := stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: w.envoyPath, Dir: l.dir, Params: envoy.Params{
		FullDuplex: l.fullDuplex, PluginSocket: plugin.Socket, ClientPort: l.ports[0],
	}})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.envoy = e
	return nil
}

// close ends every process and returns when all have ended.
func (w *world) close() {
	var all []*stack.Process
	for _, l := range w.lanes {
		plugin, e := l.now()
		if e != nil {
			all = append(all, e.Process)
		}
		if plugin != nil {
			all = append(all, plugin.Process)
		}
	}
	for _, m := range w.members {
		m.mu.Lock()
		if m.register != nil {
			all = append(all, m.register.Process)
		}
		if m.worker != nil {
			all = append(all, m.worker.Process)
		}
		m.mu.Unlock()
	}
	if w.etcd != nil {
		all = append(all, w.etcd.Process)
	}
	for _, p := range all {
		_ = p.Kill()
	}
}
