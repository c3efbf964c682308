package main

import (
	"context"
	"errors"
	"fmt"

	"path/filepath"
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
	python := func(module string, rest ...string) func([]*stack.Worker, int) []string {
		return func(ws []*stack.Worker, _ int) []string {
			return append(append([]string{"-m", module}, rest...), urls(ws)...)
		}
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
			func(ws []*stack.Worker, page int) []string {
				args := []string{"-m", "vllm_router.launch_router", "--policy", "kv_aware", "--kv-event-model", modelName, "--kv-event-block-size", strconv.Itoa(page)}
				for _, w := range ws {
					args = append(args, "--kv-event-source", fmt.Sprintf("http://%s=tcp://%s:%d", w.Info.Endpoint, w.Info.KVEvents.Host, w.Info.KVEvents.Port))
				}
				return append(append(args, "--worker-urls"), urls(ws)...)
			},
		},
	}
}

const dynamoName = "dynamo"

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
	l.url = "http://127.0.0.1:" + strconv.Itoa(ports[0])
	if m.name == dynamoName {
		return l.startBridge(ctx, p.python, ports, o.scale.Page)
	}
	if m.args == nil {
		var at []string
		for _, w := range l.prefill {
			at = append(at, w.Info.Endpoint.String())
		}
		l.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: p.envoy, Dir: l.dir, Config: stack.PlainConfig(filepath.Join(l.dir, "envoy.sock"), ports[0], at...), LogLevel: "error"})
		return err
	}
	if p.python == "" {
		return errors.New("expected -python, a Python with the packages of make bench-rivals")
	}
	args := append(m.args(l.prefill, o.scale.Page), "--host", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--prometheus-port", strconv.Itoa(ports[1]))
	if l.rival, err = stack.StartProgram(ctx, stack.ProgramOptions{Name: m.name, Path: p.python, Args: args}); err != nil {
		return err
	}
	c := newClient(l.url + o.scale.path())
	defer c.close()
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = stack.Await(wait, m.name+" to serve", func() bool { return c.send(wait, o.scale.warmUps()[0], time.Now()).err == nil || !l.rival.Alive() })
	if err != nil || !l.rival.Alive() {
		return fmt.Errorf("%s does not serve: %w\n%s", m.name, errors.Join(err, l.rival.Err()), l.rival.Log())
	}
	return nil
}

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
