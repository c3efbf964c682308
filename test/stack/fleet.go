package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// FleetOptions say which simulated workers [StartFleet] runs.
type FleetOptions struct {
	Engine            worker.Engine // default worker.SGLang
	Prefills, Decodes int
	Args              []string // flags of enginesim for all workers
	PrefillArgs       []string // for prefill workers, after Args
	DecodeArgs        []string // for decode workers, after Args
}

// Fleet is prefill and decode workers of one engine.
type Fleet struct {
	Prefills, Decodes []*Worker
}

// StartFleet runs the workers and returns once all serve. On an error it kills those that
// were started.
func StartFleet(ctx context.Context, binDir string, o FleetOptions) (*Fleet, error) {
	f := &Fleet{}
	if o.Engine == "" {
		o.Engine = worker.SGLang
	}
	start := func(role worker.Role, n int, args []string, to *[]*Worker) error {
		for range n {
			all := slices.Concat([]string{"--role=" + role.String(), "--engine=" + string(o.Engine)}, o.Args, args)
			w, err := StartWorker(ctx, binDir, all...)
			if err != nil {
				return err
			}
			*to = append(*to, w)
		}
		return nil
	}
	err := start(worker.Prefill, o.Prefills, o.PrefillArgs, &f.Prefills)
	if err == nil {
		err = start(worker.Decode, o.Decodes, o.DecodeArgs, &f.Decodes)
	}
	if err != nil {
		return nil, errors.Join(err, f.Kill())
	}
	return f, nil
}

// All returns the prefill workers, then the decode workers.
func (f *Fleet) All() []*Worker { return slices.Concat(f.Prefills, f.Decodes) }

// Infos returns the workers' own descriptions, as discovery lists them.
func (f *Fleet) Infos() []*worker.Worker {
	var out []*worker.Worker
	for _, w := range f.All() {
		out = append(out, w.Info)
	}
	return out
}

// Kill kills every worker.
func (f *Fleet) Kill() error {
	var errs []error
	for _, w := range f.All() {
		errs = append(errs, w.Kill())
	}
	return errors.Join(errs...)
}

// Settled waits until no worker runs a request, holds KV or waits for a half. If ctx ends
// before, the error names the workers that still do. A broken rule is an error at once.
func Settled(ctx context.Context, workers ...*Worker) error {
	var last error // from the previous round
	for {
		var open []error
		for _, w := range workers {
			st, err := w.Sim.State(ctx, false)
			if err != nil {
				return errors.Join(fmt.Errorf("stack: %s: %w", w.Name, err), last)
			}
			if len(st.Violations) > 0 {
				v := st.Violations[0]
				return fmt.Errorf("stack: %s: %d rules broken, the first: %s: %s", w.Name, len(st.Violations), v.Kind, v.Detail)
			}
			if what := unsettled(st); what != "" {
				open = append(open, fmt.Errorf("stack: %s: %s", w.Name, what))
			}
		}
		if len(open) == 0 {
			return nil
		}
		last = errors.Join(open...)
		select {
		case <-ctx.Done():
			return last
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// unsettled says what a worker still runs or holds, or "".
func unsettled(st enginesim.State) string {
	if waiting := st.PrefillAlone + st.PrefillMet + st.DecodeAskers + st.DecodeWaiting; st.Running+st.KVHeldBlocks+st.Handoff.Held+waiting > 0 {
		return fmt.Sprintf("%d requests run, %d wait for their half, %d KV blocks are held, %d hand-offs wait to be taken",
			st.Running, waiting, st.KVHeldBlocks, st.Handoff.Held)
	}
	return ""
}
