package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// rivalMode is a live mode in which another's program stands in the place of Envoy and the plugin, and
// chooses among workers that serve requests alone.
type rivalMode struct {
	name, what string
	like       string        // the simulated mode that it is compared with; "": none
	engine     worker.Engine // that the workers are to be like
	events     bool          // the workers publish KV events, which the program reads
	// args are those of the program; none: Envoy itself.
	args func(workers []*stack.Worker, page int) []string
}

// rivals are all of them, with their packages' defaults.
func rivals() []rivalMode {
	python := func(args ...string) func([]*stack.Worker, int) []string {
		return func(ws []*stack.Worker, _ int) []string { return slices.Concat([]string{"-m"}, args, urls(ws)) }
	}
	return []rivalMode{
		{dynamoName, "NVIDIA Dynamo's selection service, and a bridge that carries", "dynamo", worker.VLLM, true, nil},
		{"envoy-least-request", "Envoy alone, of two workers drawn the one with fewer requests", "least-request", worker.SGLang, false, nil},
		{
			"sglang-gateway", "SGLang's gateway, cache_aware", "cache-aware", worker.SGLang, false,
			python("sglang_router.launch_router", "--policy", "cache_aware", "--disable-health-check", "--worker-urls"),
		},
		{"smg", "SMG, the gateway's successor, cache_aware", "cache-aware", worker.SGLang, false, python("smg", "launch", "--policy", "cache_aware", "--worker-urls")},
		{"vllm-cache-aware", "vLLM's router, cache_aware", "cache-aware", worker.VLLM, false, python("vllm_router.launch_router", "--policy", "cache_aware", "--worker-urls")},
		{
			"vllm-kv-aware", "vLLM's router, kv_aware, by KV events", "kv-blocks", worker.VLLM, true,
			kvAware,
		},
	}
}

const dynamoName = "dynamo"

// kvAware are the arguments of vLLM's router that follows KV events, which it has to be told the addresses of.
func kvAware(ws []*stack.Worker, page int) []string {
	args := []string{"-m", "vllm_router.launch_router", "--policy", "kv_aware", "--kv-event-model", modelName, "--kv-event-block-size", strconv.Itoa(page)}
	for _, w := range ws {
		args = append(args, "--kv-event-source", fmt.Sprintf("http://%s=tcp://%s:%d", w.Info.Endpoint, w.Info.KVEvents.Host, w.Info.KVEvents.Port))
	}
	return slices.Concat(args, []string{"--worker-urls"}, urls(ws))
}

func urls(ws []*stack.Worker) (out []string) {
	for _, w := range ws {
		out = append(out, "http://"+w.Info.Endpoint.String())
	}
	return out
}

// startRival starts a rival before the workers, and returns when it serves.
func (l *lab) startRival(ctx context.Context, p parts, o *liveOptions, m *rivalMode) error {
	ports, err := stack.FreePorts(ctx, 2)
	if err != nil {
		return err
	}
	switch {
	case m.name == dynamoName:
		return l.startBridge(ctx, p.python, ports, o.scale.Page)
	case m.args == nil:
		return l.startPlainEnvoy(ctx, p, ports)
	}
	if err := l.startPython(ctx, p, m.name, m.args(l.prefill, o.scale.Page), ports); err != nil {
		return err
	}
	c := newClient(l.url + o.scale.path())
	defer c.close()
	return l.serves(ctx, func(ctx context.Context) bool { return c.send(ctx, o.scale.warmUps()[0], time.Now()).err == nil })
}

// startPlainEnvoy starts Envoy alone before the prefill workers, on the first of the ports.
func (l *lab) startPlainEnvoy(ctx context.Context, p parts, ports []int) (err error) {
	var at []string
	for _, w := range l.prefill {
		at = append(at, w.Info.Endpoint.String())
	}
	l.url = urlOf(ports[0])
	config := stack.PlainConfig(filepath.Join(l.dir, "envoy.sock"), ports[0], at...)
	l.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: p.envoy, Dir: l.dir, Config: config, LogLevel: "error"})
	return err
}

// startPython starts a rival that is a Python package, on the first of the ports; its metrics are on the second.
func (l *lab) startPython(ctx context.Context, p parts, name string, args []string, ports []int) (err error) {
	if p.python == "" {
		return errors.New("expected -python, a Python with the packages of make bench-rivals")
	}
	l.url = urlOf(ports[0])
	args = append(args, "--host", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--prometheus-port", strconv.Itoa(ports[1]))
	l.rival, err = stack.StartProgram(ctx, stack.ProgramOptions{Name: name, Path: p.python, Args: args})
	return err
}

// serves waits until the rival answers a request.
func (l *lab) serves(ctx context.Context, asked func(ctx context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := stack.Await(ctx, l.rival.Name+" to serve", func() bool { return asked(ctx) || !l.rival.Alive() })
	if err != nil || !l.rival.Alive() {
		return fmt.Errorf("%s does not serve: %w\n%s", l.rival.Name, errors.Join(err, l.rival.Err()), l.rival.Log())
	}
	return nil
}

func urlOf(port int) string { return "http://127.0.0.1:" + strconv.Itoa(port) }

// atWorkers are the times to the first token at the prefill workers themselves, from a request's arrival there.
func (l *lab) atWorkers(ctx context.Context) (out []time.Duration, err error) {
	for _, w := range l.prefill {
		list, err := w.Sim.Requests(ctx, 0)
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if r.Outcome == enginesim.OutcomeOK && r.PromptTokens != 1 { // the warm-ups have one
				out = append(out, time.Duration(max(r.TTFTMicros, r.TokenMicros))*time.Microsecond)
			}
		}
	}
	return out, nil
}
