package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// drillMode is one picker or proxy before workers of one engine.
type drillMode struct {
	name, what string
	engine     worker.Engine
	apart      bool // prefill and decode are apart
	events     bool // those who compute prompts publish KV events
	ours       bool // Baton's: that it does not start is an error
	// start starts what stands before the workers. It may return before that serves.
	start func(ctx context.Context, l *lab, p parts, ports []int) error
	// cannot are the rows that it has no part in, and why.
	cannot map[string]string
}

// dynamoCannot says why Dynamo's selection service has no part in what happens to workers.
const dynamoCannot = "the selection service asks no worker for its health and is told of no failure: Dynamo's frontend, which sees both, is not in ai-dynamo-runtime, and the bridge is ours"

// drillModes are all of them.
func drillModes() []drillMode {
	dynamo := map[string]string{rowDeath: dynamoCannot, rowSlowHealth: dynamoCannot, rowStandstill: dynamoCannot}
	const sglangGateway, vllmRouter = "sglang_router.launch_router", "vllm_router.launch_router"
	return []drillMode{
		{name: "kv", what: "Baton as shipped, whole requests", engine: worker.SGLang, events: true, ours: true, start: startBaton},
		{name: "kv-apart", what: "Baton as shipped, prefill and decode apart, which meet", engine: worker.SGLang, apart: true, events: true, ours: true, start: startBaton},
		{name: "kv-apart-vllm", what: "… of vLLM, prefill first", engine: worker.VLLM, apart: true, events: true, ours: true, start: startBaton},
		{name: dynamoName, what: "NVIDIA Dynamo's selection service and a bridge that carries, whole requests", engine: worker.VLLM, events: true, cannot: dynamo, start: func(ctx context.Context, l *lab, p parts, ports []int) error {
			return l.startBridge(ctx, p.python, ports, drillPage)
		}},
		{name: "envoy-least-request", what: "Envoy alone, whole requests", engine: worker.SGLang, start: func(ctx context.Context, l *lab, p parts, ports []int) error {
			return l.startPlainEnvoy(ctx, p, ports)
		}},
		{name: "sglang-gateway", what: "SGLang's gateway, whole requests", engine: worker.SGLang, start: asPython(whole, sglangGateway)},
		{name: "sglang-gateway-apart", what: "… prefill and decode apart, which meet", engine: worker.SGLang, apart: true, start: asPython(pairs, sglangGateway, "--pd-disaggregation")},
		{name: "smg", what: "SMG, the gateway's successor, whole requests", engine: worker.SGLang, start: asPython(whole, "smg", "launch")},
		{name: "smg-apart", what: "… prefill and decode apart, which meet", engine: worker.SGLang, apart: true, start: asPython(pairs, "smg", "launch", "--pd-disaggregation")},
		{name: "vllm-cache-aware", what: "vLLM's router, whole requests", engine: worker.VLLM, start: asPython(whole, vllmRouter)},
		{name: "vllm-kv-aware", what: "… by KV events", engine: worker.VLLM, events: true, start: func(ctx context.Context, l *lab, p parts, ports []int) error {
			return l.startPython(ctx, p, "vllm-kv-aware", kvAware(l.prefill, drillPage), ports)
		}},
		{name: "vllm-apart", what: "… prefill and decode apart, prefill first", engine: worker.VLLM, apart: true, start: asPython(pairs, vllmRouter, "--vllm-pd-disaggregation", "--policy", "consistent_hash")},
	}
}

// asPython starts a rival that is a Python package, with its module and flags, and the workers as their flags name them.
func asPython(workers func(*lab) []string, args ...string) func(context.Context, *lab, parts, []int) error {
	return func(ctx context.Context, l *lab, p parts, ports []int) error {
		return l.startPython(ctx, p, args[0], slices.Concat([]string{"-m"}, args, workers(l)), ports)
	}
}

// whole are the flags of workers that serve whole requests.
func whole(l *lab) []string { return append([]string{"--worker-urls"}, urls(l.prefill)...) }

// pairs are the flags of workers that prefill and decode. SGLang's have a port where both meet.
func pairs(l *lab) (out []string) {
	for _, w := range l.prefill {
		out = append(out, "--prefill", "http://"+w.Info.Endpoint.String())
		if w.Info.Bootstrap.Port != 0 {
			out = append(out, strconv.Itoa(int(w.Info.Bootstrap.Port)))
		}
	}
	for _, url := range urls(l.decode) {
		out = append(out, "--decode", url)
	}
	return out
}

// startBaton starts the plugin and Envoy as they are shipped, with the workers in a file.
func startBaton(ctx context.Context, l *lab, p parts, _ []int) error {
	var infos []*worker.Worker
	for _, w := range slices.Concat(l.prefill, l.decode) {
		infos = append(infos, w.Info)
	}
	workers := filepath.Join(l.dir, "workers.yaml")
	err := file.Write(workers, infos)
	if err != nil {
		return err
	}
	plugin, err := stack.StartPlugin(ctx, stack.PluginOptions{BinDir: p.bin, Dir: l.dir, Workers: workers})
	if err != nil {
		return err
	}
	l.plugins = []*stack.Plugin{plugin}
	l.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: p.envoy, Dir: l.dir, Params: envoy.Params{PluginSocket: plugin.Socket}, LogLevel: "error"})
	if err != nil {
		return err
	}
	l.url = l.envoy.URL
	return l.settle(ctx, &liveMode{events: true})
}

// How many workers there are, and of how many tokens their KV blocks are.
const (
	drillWorkers, drillDecodes = 4, 2
	drillPage                  = 16
)

// args are the flags of a worker: the simulators' own costs, but that a worker computes one prompt after the other.
func (m *drillMode) args(role worker.Role, id int) []string {
	args := []string{
		"--role", role.String(), "--engine", string(m.engine), "--id", strconv.Itoa(id), "--model", modelName,
		"--page-size", strconv.Itoa(drillPage), "--serial-prefill", "--log-requests", "16", "--log-body-bytes", "-1",
	}
	if m.engine == worker.VLLM {
		args = append(args, "--plain-handoff") // vLLM's router writes hand-offs anew, with the fields that it knows
	}
	if role == worker.Decode || !m.events {
		args = append(args, "--kv-events-port", "-1", "--replay-port", "-1")
	}
	return args
}

// openDrill starts the workers and what stands before them, and returns when that answers a request.
func openDrill(ctx context.Context, p parts, m *drillMode) (*lab, error) {
	dir, err := shortDir()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &lab{dir: dir, cancel: cancel}
	if err := l.openDrill(ctx, p, m); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lab) openDrill(ctx context.Context, p parts, m *drillMode) error {
	first, decodes := worker.Aggregated, 0
	if m.apart {
		first, decodes = worker.Prefill, drillDecodes
	}
	for i := range drillWorkers + decodes {
		to, role := &l.prefill, first
		if i >= drillWorkers {
			to, role = &l.decode, worker.Decode
		}
		w, err := stack.StartWorker(ctx, p.bin, m.args(role, i+1)...)
		if err != nil {
			return err
		}
		*to = append(*to, w)
	}
	ports, err := stack.FreePorts(ctx, 2)
	if err != nil {
		return err
	}
	if err := m.start(ctx, l, p, ports); err != nil {
		return err
	}
	c := newClient(l.url + drillPath)
	defer c.close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	last := ""
	err = stack.Await(ctx, m.name+" to serve", func() bool {
		last = c.ask(ctx, drillShot(0, 0), time.Now()).Failure
		return last == "" || l.rival != nil && !l.rival.Alive()
	})
	switch {
	case l.rival != nil && !l.rival.Alive():
		return fmt.Errorf("%s ended before it served: %w", m.name, l.rival.Err())
	case err != nil:
		return fmt.Errorf("%s did not answer within a minute, the last time: %s", m.name, last)
	default:
		return nil
	}
}
