//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/extproc/matrixtable"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// matrixModels are the models of all states. Their workers serve every plugin in
// turn: an engine does not know who sends it requests.
type matrixModels struct {
	all  []*matrixModel
	seen map[*stack.Worker]uint64 // the last request that a test has looked at
}

// newMatrixModels starts the workers.
func newMatrixModels(t *testing.T, states map[string]matrixState) *matrixModels {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ms := &matrixModels{seen: map[*stack.Worker]uint64{}}
	var wg sync.WaitGroup
	turn := make(chan struct{}, 8) // more at once would not start sooner
	for _, name := range matrixtable.States() {
		for _, accepts := range []bool{false, true} {
			m := &matrixModel{
				name: modelOf(name, accepts), state: states[name],
				base: worker.ID(100 * (len(ms.all) + 1)), workers: make([]*stack.Worker, 4),
			}
			ms.all = append(ms.all, m)
			for i := range m.workers {
				turn <- struct{}{}
				wg.Go(func() {
					w, err := stack.StartWorker(ctx, binDir, m.args(i, accepts)...)
					if err != nil {
						t.Errorf("start worker: %v", err)
					}
					m.workers[i] = w
					<-turn
				})
			}
		}
	}
	wg.Wait()
	t.Cleanup(func() {
		cancel()
		for _, m := range ms.all {
			for _, w := range m.workers {
				if w != nil {
					<-w.Done()
				}
			}
		}
	})
	require.False(t, t.Failed(), "a worker did not start")
	for _, m := range ms.all {
		m.describe()
	}
	return ms
}

func modelOf(state string, accepts bool) string {
	if accepts {
		return state + " accepts"
	}
	return state + " needs"
}

func (m *matrixModel) args(i int, accepts bool) []string {
	args := []string{"--id", m.id(i + 1).String(), "--model", m.name, "--kv-events-port", "-1", "--replay-port", "-1"}
	if i < 2 {
		return append(args, "--role", "prefill")
	}
	return append(args, "--role", "decode", "--accepts-aggregated="+strconv.FormatBool(accepts))
}

// describe changes what is said of the workers to what their state is.
func (m *matrixModel) describe() {
	for _, w := range m.workers[:2] {
		if m.state.says != nil {
			m.state.says(w.Info)
		}
	}
	for _, w := range m.workers[2:] {
		w.Info.Taints = []string{matrixTaint}
	}
}

// of returns the models that are asked of a plugin.
func (ms *matrixModels) of(plugin string) *matrixModels {
	out := &matrixModels{seen: ms.seen}
	for _, m := range ms.all {
		if m.state.plugin == plugin {
			out.all = append(out.all, m)
		}
	}
	return out
}

// door is a kind of Envoy.
type door struct {
	routing string
	duplex  bool
}

// booking is what a plugin has booked, and its open streams.
type booking struct {
	requests int
	tokens   int64 // of prompts
	blocks   int64
	streams  float64
}

// matrixSite is one plugin with a few models, behind an Envoy of each kind.
type matrixSite struct {
	*fleet  // without an Envoy
	models  *matrixModels
	fleets  map[door]*fleet
	waiting booking // before a question, and after it
	held    []*leaver
	stop    context.CancelFunc
	asked   int
	failed  bool // before it was there
}

// newMatrixSite returns a site all of whose models are in their states.
func newMatrixSite(t *testing.T, p matrixPlugin, enforced bool, models *matrixModels) *matrixSite {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &matrixSite{fleet: &fleet{t: t, dir: t.TempDir(), ctx: ctx, sent: new(atomic.Int64)}, models: models, fleets: map[door]*fleet{}, stop: stop, failed: t.Failed()}
	s.config = fmt.Sprintf("enforce_disagg: %t\ntokens: {mode: estimate}\n", enforced) + p.config +
		fmt.Sprintf("prefill: {max_queued_isl_tokens: %d, start_timeout: 10s, overdue_base: 60s, orphan_grace: 1s}\n", p.limit)
	var there, leavers []*stack.Worker
	for _, m := range models.all {
		s.workers = append(s.workers, m.workers...)
		switch {
		case m.state.absent:
		case m.state.leave:
			leavers = append(leavers, m.workers[:2]...)
		default:
			there = append(there, m.workers[:2]...)
		}
		there = append(there, m.workers[2:]...)
	}
	s.publish(append(there, leavers...)...)
	t.Cleanup(s.closed)
	s.startPlugin()
	s.startEnvoys()
	if len(leavers) > 0 {
		s.awaitStanding(func(m *matrixModel) prefill.State {
			if m.state.leave {
				return prefill.PrefillReady
			}
			return m.state.standing
		})
		s.publishAndWait(there...)
	}
	s.awaitStanding(func(m *matrixModel) prefill.State { return m.state.standing })
	if p.held {
		s.hold()
	}
	s.waiting = s.booked(t)
	require.Equal(t, p.held, s.waiting != booking{}, "%+v", s.waiting)
	return s
}

// startEnvoys starts an Envoy of each kind before the plugin.
func (s *matrixSite) startEnvoys() {
	s.t.Helper()
	var wg sync.WaitGroup
	for _, routing := range []string{"", "prerouted", "direct"} {
		for _, duplex := range []bool{false, true} {
			f := *s.fleet
			f.dir, f.fullDuplex = s.t.TempDir(), duplex
			s.fleets[door{routing, duplex}] = &f
			legs := filepath.Join(f.dir, "prefill.sock")
			if routing == "" && !duplex { // all the legs that the plugin sends go through one Envoy
				legs = filepath.Join(filepath.Dir(f.plugin.Socket), "prefill.sock")
			}
			wg.Go(func() {
				var err error
				f.envoy, err = stack.StartEnvoy(f.ctx, stack.EnvoyOptions{Path: envoyPath, Dir: f.dir, Params: envoy.Params{
					Routing: routing, FullDuplex: duplex, PluginSocket: f.plugin.Socket, PrefillSocket: legs,
				}})
				if err != nil {
					f.t.Errorf("start envoy: %v", err)
				}
			})
		}
	}
	wg.Wait()
	require.False(s.t, s.t.Failed(), "an Envoy did not start")
}

// awaitStanding waits until the plugin says what the models' states are.
func (s *matrixSite) awaitStanding(want func(m *matrixModel) prefill.State) {
	s.t.Helper()
	s.await("the models to be in their states", func() bool {
		said := map[string]string{}
		for _, k := range look(s.t, s.plugin).Keys {
			said[k.Model] = k.Activation
		}
		return !slices.ContainsFunc(s.models.all, func(m *matrixModel) bool { return said[m.name] != want(m).String() })
	})
}

// hold lets twelve tokens wait at each prefill worker: of the one request that it
// does not answer.
func (s *matrixSite) hold() {
	s.t.Helper()
	direct := s.fleets[door{"direct", false}]
	for _, m := range s.models.all {
		for i, w := range m.workers[:2] {
			s.fault(w, enginesim.Fault{Mode: enginesim.FaultHang, Count: 1})
			body := m.body(strings.Repeat("wait", 12), false)
			s.held = append(s.held, direct.beginWith(question{path: "/v1/completions", body: body},
				"x-prefill-instance-id", m.id(i+1).String(), "x-worker-instance-id", m.id(i+3).String()))
			s.await("a request to wait at "+w.Name, func() bool {
				there, ok := s.state(w)
				decode, known := s.state(m.workers[i+2])
				return ok && known && there.Running == 1 && decode.DecodeWaiting == 1
			})
		}
		require.Len(s.t, append(s.heard(s.t, m.workers[:2]), s.heard(s.t, m.workers[2:])...), 4, "each of both legs once")
	}
	all := 2 * len(s.models.all)
	require.Equal(s.t, 12*int64(all), s.booked(s.t).tokens)
	require.Equal(s.t, 2*all, s.booked(s.t).requests)
}

// booked returns what the plugin has booked now.
func (s *matrixSite) booked(t *testing.T) (b booking) {
	t.Helper()
	for _, w := range look(t, s.plugin).Workers {
		for _, r := range w.Ranks {
			b.requests += r.Requests
			b.tokens += r.PrefillTokens
			b.blocks += r.DecodeBlocks
		}
	}
	b.streams = s.metric("baton_streams_in_flight")
	return b
}

// heard is a request that a worker has received.
type heard struct {
	by string
	enginesim.Request
}

// heard returns what the workers have received since they were asked last.
func (s *matrixSite) heard(t *testing.T, ws []*stack.Worker) (out []heard) {
	t.Helper()
	for _, w := range ws {
		rs, err := w.Sim.Requests(s.ctx, s.models.seen[w])
		require.NoError(t, err)
		for _, r := range rs {
			out = append(out, heard{w.Info.ID.String(), r})
			s.models.seen[w] = r.Seq
		}
	}
	return out
}

// model returns the model that a cell asks about.
func (s *matrixSite) model(c *matrixtable.Cell) *matrixModel {
	name := modelOf(c.State, c.Accepts)
	return s.models.all[slices.IndexFunc(s.models.all, func(m *matrixModel) bool { return m.name == name })]
}

// end checks that nothing is left of any request, and ends all but the workers.
func (s *matrixSite) end() {
	s.t.Helper()
	for _, l := range s.held {
		s.leaves(l)
	}
	require.Empty(s.t, s.heard(s.t, s.workers), "a worker of another model was reached, or one after its cell")
	require.Zero(s.t, s.metric("baton_fresh_picks_total"), "nothing was tried twice")
	s.checkIdle()
	s.closed()
}

// closed ends the plugin and its Envoys.
func (s *matrixSite) closed() {
	if s.t.Failed() && !s.failed && s.ctx.Err() == nil && s.plugin != nil {
		s.dump()
	}
	s.stop()
	if s.plugin != nil {
		<-s.plugin.Done()
	}
	for _, f := range s.fleets {
		if f.envoy != nil {
			<-f.envoy.Done()
		}
	}
}
