package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// What the simulated workers are like. A prompt token takes a millisecond, so
// that a person sees what a cached block saves.
const (
	model           = "demo-model"
	blockSize       = 16 // tokens per KV block
	prefillPerToken = 1000
	decodePerToken  = 10000 // µs, as the one above

	// leaseTTL is how long etcd keeps a worker whose pod has died. The default is
	// twice as long; a story should not wait for it.
	leaseTTL = 5 * time.Second
)

// pluginConfig is the defaults but for the header that explains a decision, and two waits: on a machine that is busy with
// other things, an engine's tokenizer and Envoy may take their time, and the
// story would then rightly tell of byte estimates and lost legs.
const pluginConfig = "tokens: {wait: 3s}\nprefill: {start_timeout: 5s}\nrouting: {debug_header: true}\n"

// maxSocketPath is what the kernel takes for the path of a unix socket.
const maxSocketPath = 107

// folder is where one run keeps its files: below .run of the repository.
type folder struct {
	bin string // kept from run to run
	run string // of this run
}

func newFolder() (folder, error) {
	root, err := stack.Root()
	if err != nil {
		return folder{}, err
	}
	base := filepath.Join(root, ".run")
	f := folder{bin: filepath.Join(base, "bin")}
	if err := os.MkdirAll(f.bin, 0o755); err != nil {
		return folder{}, fmt.Errorf("%w", err)
	}
	if len(base)+len("/demo-4294967295/extproc.sock") > maxSocketPath {
		base = "" // the system's folder for temporary files has a shorter path
	}
	f.run, err = os.MkdirTemp(base, "demo-")
	if err != nil {
		return folder{}, fmt.Errorf("%w", err)
	}
	return f, nil
}

func (f folder) remove() { _ = os.RemoveAll(f.run) }

// stage is everything that runs.
type stage struct {
	opts   stageOptions
	ctx    context.Context //nolint:containedctx // of the processes: ends with close
	cancel context.CancelFunc

	etcd    *stack.Etcd // nil where another's is used
	keys    []string    // etcd's addresses
	prefix  string      // of the workers' keys; empty: the plugin's default
	prefill []*pod
	decode  []*pod
	plugin  *stack.Plugin
	envoy   *stack.Envoy

	mu     sync.Mutex
	procs  []*stack.Process        // guarded by mu: all that were started
	killed map[*stack.Process]bool // guarded by mu: those that were meant to end
	named  map[worker.Role]int     // guarded by mu: how many of a role have a name
}

type stageOptions struct {
	binDir, dir, envoy string
	etcd               []string // of a cluster of the caller's; none: one is started
	prefill, decode    int
}

// openStage starts etcd, then the pods and the plugin, then Envoy, and returns
// when the plugin knows every worker. The caller must close the stage.
func openStage(ctx context.Context, o stageOptions) (*stage, error) {
	ctx, cancel := context.WithCancel(ctx)
	st := &stage{opts: o, ctx: ctx, cancel: cancel, keys: o.etcd, killed: map[*stack.Process]bool{}, named: map[worker.Role]int{}}
	if err := st.open(); err != nil {
		err = fmt.Errorf("%w\n%s", err, st.logs())
		st.close()
		return nil, err
	}
	return st, nil
}

func (st *stage) open() (err error) {
	if len(st.keys) == 0 {
		st.etcd, err = stack.StartEtcd(st.ctx, stack.EtcdOptions{BinDir: st.opts.binDir, Dir: filepath.Join(st.opts.dir, "etcd")})
		if err != nil {
			return err
		}
		st.started(st.etcd.Process)
		st.keys = st.etcd.Endpoints
	} else {
		st.prefix = "baton-" + filepath.Base(st.opts.dir) // others may keep their workers there
	}
	// Not errgroup.WithContext: the processes end with their context, and must
	// outlive the group.
	var g errgroup.Group
	g.Go(func() (err error) { st.prefill, err = st.startPods(worker.Prefill, st.opts.prefill); return err })
	g.Go(func() (err error) { st.decode, err = st.startPods(worker.Decode, st.opts.decode); return err })
	g.Go(func() (err error) {
		st.plugin, err = stack.StartPlugin(st.ctx, stack.PluginOptions{
			BinDir: st.opts.binDir, Dir: st.opts.dir, Etcd: st.keys, Prefix: st.prefix, Config: pluginConfig,
		})
		if err == nil {
			st.started(st.plugin.Process)
		}
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	st.envoy, err = stack.StartEnvoy(st.ctx, stack.EnvoyOptions{
		Path: st.opts.envoy, Dir: st.opts.dir, Params: envoy.Params{PluginSocket: st.plugin.Socket},
	})
	if err != nil {
		return err
	}
	st.started(st.envoy.Process)
	return st.settle()
}

// settle waits until etcd holds every worker, and the plugin knows those and
// nobody else.
func (st *stage) settle() error {
	for _, p := range st.pods() {
		if err := st.awaitRegistered(st.ctx, p); err != nil {
			return err
		}
	}
	return st.await(st.ctx, "the plugin to know the workers", func(ctx context.Context) (bool, error) {
		known, err := admin{st.plugin.Admin}.workers(ctx)
		return err == nil && same(known, st.pods()), err
	})
}

// same reports whether the plugin knows exactly these pods.
func same(known map[worker.ID]workerState, pods []*pod) bool {
	for _, p := range pods {
		if _, ok := known[p.id]; !ok {
			return false
		}
	}
	return len(known) == len(pods)
}

func (st *stage) started(p *stack.Process) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.procs = append(st.procs, p)
}

// processes returns all that were started, the dead included. The slice is the
// caller's.
func (st *stage) processes() []*stack.Process {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Clone(st.procs)
}

// close ends every process and returns when all are gone.
func (st *stage) close() {
	st.cancel()
	for _, p := range st.processes() {
		<-p.Done()
	}
}

// await asks ok until it says yes; an error of ok, or of any process that ends
// by itself, ends the wait.
func (st *stage) await(ctx context.Context, what string, ok func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	var failed error
	err := stack.Await(ctx, what, func() bool {
		yes, err := ok(ctx)
		if err == nil {
			err = st.died()
		}
		if ctx.Err() == nil {
			failed = err
		}
		return yes || failed != nil
	})
	return errors.Join(failed, err)
}

// died returns an error that names a process that has ended by itself, or nil.
func (st *stage) died() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, p := range st.procs {
		if st.killed[p] {
			continue
		}
		select {
		case <-p.Done():
			return fmt.Errorf("%s has ended by itself: %w", p.Name, p.Err())
		default:
		}
	}
	return nil
}

// logs returns the end of what each process wrote, for a story that failed.
func (st *stage) logs() string {
	const lines = 15
	var b strings.Builder
	for _, p := range st.processes() {
		all := strings.Split(strings.TrimSpace(p.Log()), "\n")
		fmt.Fprintf(&b, "--- last words of %s ---\n%s\n", p.Name, strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	return b.String()
}
