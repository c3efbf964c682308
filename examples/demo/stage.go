package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/stack"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// What the simulated workers are like. A prompt token takes a millisecond, so
// that a person sees what a cached block saves.
const (
	model           = "demo-model"
	blockSize       = 16 // tokens per KV block
	prefillPerToken = 1000
	decodePerToken  = 10000 // µs, as the one above
	firstPrefill    = 101   // worker ids: 101, 102 …
	firstDecode     = 201
)

// pluginConfig is the defaults but for two waits: on a machine that is busy with
// other things, an engine's tokenizer and Envoy may take their time, and the
// story would then rightly tell of byte estimates and lost legs.
const pluginConfig = "tokens: {wait: 3s}\nprefill: {start_timeout: 5s}\n"

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
	if f.run, err = os.MkdirTemp(base, "demo-"); err != nil {
		return folder{}, fmt.Errorf("%w", err)
	}
	return f, nil
}

func (f folder) remove() { _ = os.RemoveAll(f.run) }

// stage is everything that runs.
type stage struct {
	cancel  context.CancelFunc
	prefill []*stack.Worker
	decode  []*stack.Worker
	plugin  *stack.Plugin
	envoy   *stack.Envoy
}

type stageOptions struct {
	binDir, dir, envoy string
	prefill, decode    int
}

// openStage starts workers, plugin and Envoy, in this order. The caller must
// close the stage.
func openStage(ctx context.Context, o stageOptions) (*stage, error) {
	ctx, cancel := context.WithCancel(ctx)
	st := &stage{cancel: cancel}
	if err := st.open(ctx, o); err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

func (st *stage) open(ctx context.Context, o stageOptions) error {
	st.prefill, st.decode = make([]*stack.Worker, o.prefill), make([]*stack.Worker, o.decode)
	// Not errgroup.WithContext: the processes end with their context, and must
	// outlive the group.
	var g errgroup.Group
	start := func(into []*stack.Worker, role worker.Role, id int) {
		for i := range into {
			g.Go(func() (err error) {
				into[i], err = stack.StartWorker(ctx, o.binDir,
					"--role", role.String(), "--id", strconv.Itoa(id+i), "--model", model,
					"--page-size", strconv.Itoa(blockSize),
					"--prefill-us-per-token", strconv.Itoa(prefillPerToken),
					"--decode-us-per-token", strconv.Itoa(decodePerToken))
				return err
			})
		}
	}
	start(st.prefill, worker.Prefill, firstPrefill)
	start(st.decode, worker.Decode, firstDecode)
	if err := g.Wait(); err != nil {
		return err
	}
	list := filepath.Join(o.dir, "workers.yaml")
	if err := file.Write(list, st.infos()); err != nil {
		return err
	}
	var err error
	st.plugin, err = stack.StartPlugin(ctx, stack.PluginOptions{
		BinDir: o.binDir, Dir: o.dir, Workers: list, Config: pluginConfig,
	})
	if err != nil {
		return err
	}
	st.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{
		Path: o.envoy, Dir: o.dir, Params: envoy.Params{PluginSocket: st.plugin.Socket},
	})
	return err
}

// workers returns all of them, prefill first.
func (st *stage) workers() []*stack.Worker {
	return append(append([]*stack.Worker(nil), st.prefill...), st.decode...)
}

func (st *stage) infos() []*worker.Worker {
	var out []*worker.Worker
	for _, w := range st.workers() {
		out = append(out, w.Info)
	}
	return out
}

// byID returns the worker with the id, or nil.
func (st *stage) byID(id worker.ID) *stack.Worker {
	for _, w := range st.workers() {
		if w.Info.ID == id {
			return w
		}
	}
	return nil
}

func (st *stage) processes() []*stack.Process {
	var out []*stack.Process
	if st.envoy != nil {
		out = append(out, st.envoy.Process)
	}
	if st.plugin != nil {
		out = append(out, st.plugin.Process)
	}
	for _, w := range st.workers() {
		if w != nil {
			out = append(out, w.Process)
		}
	}
	return out
}

// close ends every process and returns when all are gone.
func (st *stage) close() {
	st.cancel()
	for _, p := range st.processes() {
		<-p.Done()
	}
}

// died returns an error that names a process that has ended, or nil.
func (st *stage) died() error {
	for _, p := range st.processes() {
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
