//go:build e2e && long

package envoytest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// The tests here hold two properties: no client can have a healthy worker set aside,
// and no sick worker wins the traffic. Each is tried with the simulators and with mocks
// that share no code with them.

// ailment is a way to be sick.
type ailment struct {
	mode, when string
	status     int
	streams    bool // only streamed answers show it
	plain      bool // only others: a stream that falls silent ends when its client leaves, and blames nobody
	only       worker.Role
}

func (a ailment) String() string {
	s := a.mode
	if a.status > 0 {
		s += fmt.Sprintf(" %d", a.status)
	}
	if a.when != "" {
		s += " " + a.when
	}
	return s
}

// asks reports whether the nth request has its answer streamed: every other one, where
// both show it.
func (a ailment) asks(n int) (stream bool) { return a.streams || !a.plain && n%2 == 0 }

// ailments are the ways, thirty and more for each engine.
func ailments() (out []ailment) {
	for _, status := range []int{400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 500, 501, 502, 503, 504} {
		out = append(out, ailment{mode: "error", when: "before", status: status})
	}
	return append(out,
		ailment{mode: "error", when: "begun", status: 400, streams: true}, ailment{mode: "error", when: "begun", status: 500, streams: true},
		ailment{mode: "error", when: "begun", status: 503, streams: true}, ailment{mode: "error", when: "mid", status: 500, only: worker.Prefill},
		ailment{mode: "empty", when: "before"}, ailment{mode: "empty", when: "begun", streams: true},
		ailment{mode: "truncate", when: "before"}, ailment{mode: "truncate", when: "begun", streams: true}, ailment{mode: "truncate", when: "mid"},
		ailment{mode: "hang", when: "before"}, ailment{mode: "hang", when: "begun", streams: true}, ailment{mode: "hang", when: "mid", plain: true},
		ailment{mode: "gone"}, ailment{mode: "stopped"}, ailment{mode: "finish_abort", when: "before", streams: true},
		ailment{mode: "no_handoff", only: worker.Prefill}, ailment{mode: "bad_handoff", only: worker.Prefill},
	)
}

// patient is a worker that can be made sick.
type patient struct {
	id     worker.ID
	role   worker.Role
	sicken func(ailment)
}

// ward is a fleet of patients, and what a good answer of theirs is.
type ward struct {
	*fleet
	patients []patient
	good     func(r *reply, prompt string, tokens int) bool
}

func (w *ward) of(role worker.Role) (out []patient) {
	for _, p := range w.patients {
		if p.role == role {
			out = append(out, p)
		}
	}
	return out
}

func simWard(t *testing.T, l layout) *ward {
	l.noCheck = true // those that hang keep what they have
	f := newFleet(t, l)
	w := &ward{fleet: f, good: func(r *reply, prompt string, tokens int) bool {
		return r.err == nil && r.status == 200 && strings.TrimSpace(r.text()) == strings.TrimSpace(enginesim.Answer(enginesim.Tokenize(prompt), tokens))
	}}
	for _, x := range f.workers {
		w.patients = append(w.patients, patient{x.Info.ID, x.Info.Role, func(a ailment) { sickenSim(f, x, a) }})
	}
	return w
}

func sickenSim(f *fleet, w *stack.Worker, a ailment) {
	switch a.mode {
	case "gone":
		require.NoError(f.t, w.Kill())
	case "stopped":
		require.NoError(f.t, w.Signal(syscall.SIGSTOP))
	default:
		f.fault(w, enginesim.Fault{Mode: enginesim.Mode(a.mode), When: enginesim.Moment(a.when), Status: a.status})
	}
}

func mockWard(t *testing.T, l layout, prefill, decode, aggregated int) *ward {
	l.config = "tokens: {mode: estimate}\n" + l.config
	l.noCheck = true
	f, mocks := newMockFleet(t, l, prefill, decode, aggregated)
	w := &ward{fleet: f, good: func(r *reply, _ string, _ int) bool { return r.err == nil && r.status == 200 && r.text() == mockText }}
	for _, m := range mocks {
		w.patients = append(w.patients, patient{m.info.ID, m.info.Role, func(a ailment) {
			m.sicken(mockFault{mode: a.mode, when: a.when, status: a.status})
		}})
	}
	return w
}

// once asks and reports whether the answer is good.
func (w *ward) once(i int, stream bool) bool {
	prompt := fmt.Sprintf("request %d of the ward", i)
	ctx, cancel := context.WithTimeout(w.t.Context(), 60*time.Second)
	defer cancel()
	r := w.send(ctx, "/v1/completions", completion(prompt, 6, stream))
	if !w.good(r, prompt, 6) {
		w.t.Logf("request %d, stream %t: %d %v %.200s", i, stream, r.status, r.err, r.body)
		return false
	}
	return true
}

// met returns how many of the latest attempts had the worker, once all requests are
// counted.
func (w *ward) met(p patient) (n int) {
	w.t.Helper()
	w.await("all requests to be counted", func() bool { return w.metric("baton_requests_total") == float64(w.sent.Load()) })
	for _, d := range w.decisions() {
		for _, c := range []*choiceSeen{d.Prefill, d.Decode} {
			if c != nil && c.WorkerID == p.id.String() {
				n++
			}
		}
	}
	return n
}

// requireOut makes the first worker of the role sick and holds that it is set aside
// within ten requests, nobody else ever, and that of twenty more at least 19 are served.
func (w *ward) requireOut(role worker.Role, a ailment) {
	w.t.Helper()
	for i := range 8 {
		require.True(w.t, w.once(i, i%2 == 0), "request %d, all are well", i)
	}
	sick := w.of(role)[0]
	before := w.met(sick)
	sick.sicken(a)
	n, lost, late := 0, 0, 0
	for ; n < 40 && w.met(sick)-before < 10 && len(w.whoWentAside()) == 0; n++ {
		if !w.once(100+n, a.asks(n)) {
			lost++
		}
	}
	met := w.met(sick) - before
	out := w.whoWentAside()
	for i := range 20 {
		if !w.once(200+i, a.asks(i)) {
			late++
		}
	}
	w.t.Logf("%s %s: %d of %d lost, %d were sent to it; then %d of 20", role, a, lost, n, met, late)
	require.Equal(w.t, []worker.ID{sick.id}, out, "after %d requests at it", met)
	require.LessOrEqual(w.t, late, 1)
	require.Equal(w.t, []worker.ID{sick.id}, w.whoWentAside())
}

// waysOf are those in which a worker of that role can be sick.
func waysOf(role worker.Role, mocks bool, skip []string) (out []ailment) {
	for _, a := range ailments() {
		switch {
		case a.status > 0 && a.status < 400 && !mocks: // the simulators say no such thing
		case a.only != 0 && a.only != role, role == worker.Prefill && a.streams, slices.Contains(skip, a.mode):
		default:
			out = append(out, a)
		}
	}
	return out
}

// TestASickWorkerDoesNotWin: thirty ways and more on each engine, with one good worker
// beside it.
func TestASickWorkerDoesNotWin(t *testing.T) {
	t.Parallel()
	fleets := map[worker.Role]layout{
		worker.Prefill: {prefill: 2, decode: 1}, worker.Decode: {prefill: 1, decode: 2}, worker.Aggregated: {aggregated: 2},
	}
	try := func(t *testing.T, mocks bool, skip []string, open func(t *testing.T, l layout) *ward) {
		t.Parallel()
		ways := map[string]bool{}
		for role, l := range fleets {
			for _, a := range waysOf(role, mocks, skip) {
				ways[a.String()] = true
				t.Run(fmt.Sprintf("%s %s", role, a), func(t *testing.T) {
					t.Parallel()
					open(t, l).requireOut(role, a)
				})
			}
		}
		require.GreaterOrEqual(t, len(ways), 30)
	}
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM, worker.VLLMMooncake, worker.TensorRTLLM} {
		t.Run(string(engine), func(t *testing.T) {
			skip := []string{}
			if !engines.HandOff(engine).PrefillFirst() {
				skip = []string{"no_handoff", "bad_handoff"}
			}
			try(t, false, skip, func(t *testing.T, l layout) *ward { return simWard(t, layoutOf(l, engine)) })
		})
	}
	t.Run("mock", func(t *testing.T) {
		try(t, true, []string{"no_handoff", "bad_handoff", "finish_abort"}, func(t *testing.T, l layout) *ward {
			n := l
			l.prefill, l.decode, l.aggregated = 0, 0, 0
			return mockWard(t, l, n.prefill, n.decode, n.aggregated)
		})
	})
}
