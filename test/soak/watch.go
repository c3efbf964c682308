package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// watch looks at every worker each second until ctx ends, and at what the plugins think
// of them.
func (w *world) watch(ctx context.Context) {
	var health sync.WaitGroup
	defer health.Wait()
	health.Go(func() { w.watchHealth(ctx) })
	for ctx.Err() == nil {
		for _, m := range w.members {
			if m.change.TryLock() {
				w.inspect(ctx, m)
				m.change.Unlock()
			}
		}
		pause(ctx, time.Second)
	}
}

// inspect reads what a worker has been sent since it was last looked at. One
// that does not answer is looked at later. The caller holds m.change.
func (w *world) inspect(ctx context.Context, m *member) {
	engine, control := m.now()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rs, err := control.Requests(ctx, m.read)
	if err != nil {
		return
	}
	for _, r := range rs {
		m.read = r.Seq
		if m.on.Role == worker.Decode {
			w.checkDecode(m, r)
		}
	}
	st, err := control.State(ctx, false)
	if err != nil || len(st.Violations) == 0 {
		return
	}
	for _, v := range st.Violations {
		m.told++
		w.events.violate(fmt.Sprintf("%s: rule broken: %s: %s", m.on, v.Kind, v.Detail), w.traceOf(ctx, m, v)+w.around(m, engine))
	}
	_ = control.Reset(ctx)
	m.read = 0
}

// traceOf tells what workers and plugins know of the requests that broke a rule.
func (w *world) traceOf(ctx context.Context, m *member, v enginesim.Violation) string {
	ids := map[string]bool{}
	for _, other := range w.members {
		if other.on.Model != m.on.Model {
			continue
		}
		_, control := other.now()
		rs, _ := control.Requests(ctx, 0)
		for _, r := range rs {
			if v.Handoff != "" && r.Handoff == v.Handoff || v.Room > 0 && r.Room == v.Room {
				ids[r.Headers.Get("X-Request-Id")] = true
			}
		}
	}
	var b strings.Builder
	for id := range ids {
		fmt.Fprintf(&b, "request %s:\n", id)
		for _, other := range w.members {
			if other.on.Model == m.on.Model {
				b.WriteString(w.seenBy(ctx, other, id))
			}
		}
		for _, l := range w.lanes {
			plugin, _ := l.now()
			page, err := plugin.Page(ctx, "/debug/decisions?n=256")
			fmt.Fprintf(&b, "lane %d: %s\n", l.index, decisionsOf(page, err, id))
		}
	}
	return b.String()
}

// parameters is the field without which an engine's decode half must not be
// asked.
var parameters = map[worker.Engine]string{
	worker.SGLang: `"bootstrap_room":`, worker.VLLM: `"kv_transfer_params":`, worker.TensorRTLLM: `"disaggregated_params":`,
}

// checkDecode holds that nothing reaches a decode worker without its parameters.
// Disaggregation is enforced here, so that not even a vLLM worker that can is given
// the prompt alone after a prefill that gave no hand-off.
func (w *world) checkDecode(m *member, r enginesim.Request) {
	if strings.Contains(r.Body, parameters[m.model.Engine]) {
		return
	}
	engine, _ := m.now()
	w.events.violate(fmt.Sprintf("%s got request %d (%s) without parameters: %s %d %s",
		m.on, r.Seq, r.Headers.Get("X-Request-Id"), r.Outcome, r.Status, r.Error),
		fmt.Sprintf("its body: %.2000s\n%s", r.Body, w.around(m, engine)))
}

// inspectDead reads what a worker that has ended said last. The caller holds
// m.change.
func (w *world) inspectDead(m *member, engine *stack.Worker) {
	told := m.told
	for line := range strings.Lines(engine.Log()) {
		if !strings.Contains(line, "engine rule broken") {
			continue
		}
		told--
		if told < 0 {
			w.events.violate(m.on.String()+": rule broken by a worker that is dead now: "+strings.TrimSpace(line), w.around(m, engine))
			return
		}
	}
}

// around tells what was wrong about now with a worker's model.
func (w *world) around(m *member, engine *stack.Worker) string {
	var b strings.Builder
	now := w.events.since()
	for _, s := range w.events.history() {
		if s.To != 0 && s.To+workerReach < now || s.Fault.On.Model != "" && s.Fault.On.Model != m.model.Name {
			continue
		}
		fmt.Fprintf(&b, "  %.2f–%.2f  %s\n", s.From.Seconds(), s.To.Seconds(), s.Fault)
	}
	return fmt.Sprintf("faults:\n%s%s:\n%s", b.String(), engine.Name, lastLines(engine.Log(), 10))
}

// decisionsOf leaves of the plugin's decisions those of one request.
func decisionsOf(page string, err error, id string) string {
	if err != nil {
		return err.Error()
	}
	var doc struct {
		Decisions []map[string]any `json:"decisions"`
	}
	if err := json.Unmarshal([]byte(page), &doc); err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, d := range doc.Decisions {
		if id == "" || d["request_id"] != id {
			continue
		}
		for _, long := range []string{"prefill", "decode"} {
			if c, ok := d[long].(map[string]any); ok {
				d[long] = fmt.Sprintf("%v at %v: %v", c["worker_id"], c["endpoint"], c["why"])
			}
		}
		text, err := json.Marshal(d)
		if err != nil {
			return err.Error()
		}
		b.WriteString("\n  " + string(text))
	}
	if b.Len() == 0 {
		return "none of this request is kept"
	}
	return b.String()
}

// progress prints a line each ten seconds until ctx ends.
func (w *world) progress(ctx context.Context, t *traffic) {
	for {
		pause(ctx, 10*time.Second)
		if ctx.Err() != nil {
			return
		}
		w.events.mu.Lock()
		faults, on := len(w.events.faults), 0
		for _, s := range w.events.faults {
			if s.To == 0 {
				on++
			}
		}
		asked := w.events.asked
		w.events.mu.Unlock()
		w.events.say("%d answered, %d in flight; %d faults, %d on; %s", asked, t.inFlight.Load(), faults, on, w.sizes(ctx))
		w.events.say("  %s", w.events.tally(7))
	}
}

// sizes tells what the plugins and Envoys take.
func (w *world) sizes(ctx context.Context) string {
	var parts []string
	for _, l := range w.lanes {
		plugin, proxy := l.now()
		s := w.size(ctx, plugin)
		parts = append(parts, fmt.Sprintf("lane %d: plugin %d MiB, %d goroutines, Envoy %d MiB",
			l.index, plugin.RSS()>>20, s, proxy.RSS()>>20))
	}
	return strings.Join(parts, "; ")
}

// size returns a plugin's goroutines, 0 where it does not answer.
func (w *world) size(ctx context.Context, p *stack.Plugin) int {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	m, err := p.Metrics(ctx)
	if err != nil {
		return 0
	}
	n, _ := m.Sum("go_goroutines")
	return int(n)
}
