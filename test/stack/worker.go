package stack

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// Worker is a running simulated worker.
type Worker struct {
	*Process
	Info *worker.Worker    // its own description
	Sim  *enginesim.Client // inspects it and sets its faults
}

// StartWorker runs one simulated worker and returns once it serves. args are flags of the
// enginesim command. Addresses that args do not name get ports that stay this process's
// after the worker's death, until ctx has ended. So a request to a dead worker is refused, and reaches no
// other process.
func StartWorker(ctx context.Context, binDir string, args ...string) (*Worker, error) {
	at, err := addresses(ctx, args)
	if err != nil {
		return nil, err
	}
	proc, line, err := startReady(ctx, "worker", filepath.Join(binDir, "enginesim"), slices.Concat(args, at)...)
	if err != nil {
		return nil, err
	}
	info, err := record.Parse("ready line", line)
	if err != nil {
		_ = proc.Kill()
		return nil, fmt.Errorf("stack: worker's ready line: %w", err)
	}
	proc.Name = fmt.Sprintf("%s worker %s", info.Role, info.ID)
	return &Worker{Process: proc, Info: info, Sim: &enginesim.Client{BaseURL: "http://" + info.Endpoint.String()}}, nil
}

// addresses returns flags for the addresses that a worker with these flags needs and the
// flags do not name. Their ports are held; see FreePorts.
func addresses(ctx context.Context, args []string) (more []string, err error) {
	ranks, perRank := 1, hasFlag(args, "port-per-rank")
	if v, ok := flagOf(args, "dp-size"); ok {
		ranks, _ = strconv.Atoi(v) // the command refuses a value that is not a number
	}
	role, _ := flagOf(args, "role")
	engine, named := flagOf(args, "engine")
	sglang := !named || engine == string(worker.SGLang)
	prefill := role == worker.Prefill.String()
	for _, l := range []struct {
		flag, prefix string
		wanted       bool
		perRank      bool
	}{
		{"listen", "127.0.0.1:", true, perRank},
		{"bootstrap-listen", "127.0.0.1:", prefill && (sglang || engine == string(worker.VLLMMooncake)), false},
		{"side-channel-listen", "127.0.0.1:", prefill && !sglang, true},
		{"kv-events-port", "", engine != string(worker.TensorRTLLM), true},
		{"replay-port", "", engine != string(worker.TensorRTLLM), true},
	} {
		if _, named := flagOf(args, l.flag); named || !l.wanted {
			continue
		}
		n := 1
		if l.perRank {
			n = max(ranks, 1)
		}
		first, err := FreeRow(ctx, n)
		if err != nil {
			return nil, err
		}
		more = append(more, fmt.Sprintf("--%s=%s%d", l.flag, l.prefix, first))
	}
	return more, nil
}

// flagOf returns the last value of a flag in args, in the way of package flag.
func flagOf(args []string, name string) (value string, found bool) {
	for i, a := range args {
		a, dash := strings.CutPrefix(a, "-")
		a = strings.TrimPrefix(a, "-")
		if v, ok := strings.CutPrefix(a, name+"="); dash && ok {
			value, found = v, true
		} else if dash && a == name && i+1 < len(args) {
			value, found = args[i+1], true
		}
	}
	return value, found
}

func hasFlag(args []string, name string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return strings.TrimLeft(a, "-") == name && a != name })
}
