package health

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The verbs of testdata, each ending with the workers that are not simply
// healthy. at is the time in seconds, which only goes on; every command may
// have it.
//
//	config [share=0.5] [errors=3]     first, if at all
//	workers                           the snapshot; a worker is: id role [port] [draining]
//	report id=7 outcome=server-error [times=2]
//	probe                             what is due and when the next will be
//	result id=7 ok=true               of the probe under way
//	allows                            who may be picked
//	begin id=7 name=a                 a request was given to 7
//	end name=a
//
// Jitter is taken out: waits are what the configuration says.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{t: t, trials: map[string]begun{}, probing: map[worker.ID]uint64{}}
		s.start(Config{})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			s.do(d)
			s.status()
			return s.out.String()
		})
	})
}

type begun struct {
	rank  worker.Rank
	trial uint64
}

type scenario struct {
	t       *testing.T
	tr      *Tracker
	snap    *worker.Snapshot
	now     time.Time
	out     strings.Builder
	trials  map[string]begun
	probing map[worker.ID]uint64
}

var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// noJitter is a source whose Float64 is 0.5.
type noJitter struct{}

func (noJitter) Uint64() uint64 { return 1 << 52 }

func (s *scenario) start(c Config) {
	c.Hooks = Hooks{
		Transition: func(x Transition) {
			fmt.Fprintf(&s.out, "%v: %v -> %v (%s)\n", x.ID, x.From, x.To, x.Reason)
		},
		Spared: func(id worker.ID, r Reason, _ time.Time) { fmt.Fprintf(&s.out, "%v: spared (%s)\n", id, r) },
	}
	tr, err := New(c)
	require.NoError(s.t, err)
	tr.rng = newRand(noJitter{})
	s.tr, s.now = tr, zero
}

func (s *scenario) status() {
	for _, w := range s.tr.Status() {
		if w.State == Healthy && w.SparedFor == "" && w.ConsecutiveErrors == 0 {
			continue
		}
		fmt.Fprintf(&s.out, "  %v %v", w.ID, w.State)
		if w.State != Healthy {
			fmt.Fprintf(&s.out, " since %v by %s", w.Since.Sub(zero), w.Reason)
		}
		if w.ConsecutiveErrors > 0 {
			fmt.Fprintf(&s.out, ", errors %d", w.ConsecutiveErrors)
		}
		if w.Relapses > 0 {
			fmt.Fprintf(&s.out, ", relapses %d", w.Relapses)
		}
		if w.SparedFor != "" {
			fmt.Fprintf(&s.out, ", spared for %s", w.SparedFor)
		}
		s.out.WriteByte('\n')
	}
}

func (s *scenario) do(d *datadriven.TestData) {
	args := map[string]string{}
	for _, a := range d.CmdArgs {
		args[a.Key] = strings.Join(a.Vals, ",")
	}
	if at := args["at"]; at != "" {
		after, err := time.ParseDuration(at + "s")
		require.NoError(s.t, err, d.Pos)
		next := zero.Add(after)
		require.False(s.t, next.Before(s.now), d.Pos)
		s.now = next
	}
	var id worker.ID
	if args["id"] != "" {
		var err error
		id, err = worker.ParseID(args["id"])
		require.NoError(s.t, err, d.Pos)
	}
	switch d.Cmd {
	case "config":
		var c Config
		if v := args["share"]; v != "" {
			f, err := strconv.ParseFloat(v, 64)
			require.NoError(s.t, err)
			c.MaxShare = f
		}
		if v := args["errors"]; v != "" {
			n, err := strconv.Atoi(v)
			require.NoError(s.t, err)
			c.ServerErrors = n
		}
		s.start(c)
	case "workers":
		s.snap = parseWorkers(s.t, d.Input)
		s.tr.Update(s.snap, s.now)
	case "report":
		times := 1
		if v := args["times"]; v != "" {
			times, _ = strconv.Atoi(v)
		}
		for range times {
			s.tr.Report(id, outcome(s.t, args["outcome"]), s.now)
		}
	case "probe":
		for _, p := range s.tr.due(s.now) {
			s.probing[p.id] = p.number
			fmt.Fprintf(&s.out, "get %s\n", p.url)
		}
		if at, any := s.tr.nextDue(); any {
			fmt.Fprintf(&s.out, "next at %v\n", at.Sub(zero))
		}
	case "result":
		s.tr.probed(id, s.probing[id], args["ok"] == "true", s.now)
	case "allows":
		var ids []string
		_, aside, asked := s.tr.Limits()
		for _, w := range s.snap.Workers() {
			allowed := s.tr.Allows(worker.Rank{ID: w.ID})
			if allowed {
				ids = append(ids, w.ID.String())
			}
			if slices.Contains(aside, w.ID) {
				require.False(s.t, allowed, "worker %s is aside", w.ID)
			} else if !slices.Contains(asked, w.ID) {
				require.True(s.t, allowed, "worker %s is under no limit", w.ID)
			}
		}
		fmt.Fprintf(&s.out, "allowed: %s\n", strings.Join(ids, " "))
	case "begin":
		r := worker.Rank{ID: id}
		b := begun{r, s.tr.Begin(r)}
		s.trials[args["name"]] = b
		if b.trial != 0 {
			s.out.WriteString("a trial\n")
		}
	case "end":
		b := s.trials[args["name"]]
		s.tr.End(b.rank, b.trial)
	default:
		s.t.Fatalf("%s: unknown verb %q", d.Pos, d.Cmd)
	}
}

func outcome(t *testing.T, name string) Outcome {
	for o := range numOutcomes {
		if o.String() == name {
			return o
		}
	}
	require.Failf(t, "unknown outcome", "%q", name)
	return 0
}

func parseWorkers(t *testing.T, text string) *worker.Snapshot {
	var ws []*worker.Worker
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		id, err := worker.ParseID(f[0])
		require.NoError(t, err)
		role, err := worker.ParseRole(f[1])
		require.NoError(t, err)
		port, draining := "8000", false
		for _, x := range f[2:] {
			if x == "draining" {
				draining = true
			} else {
				port = x
			}
		}
		e, err := worker.ParseEndpoint(fmt.Sprintf("10.0.0.%d:%s", id, port))
		require.NoError(t, err)
		ws = append(ws, &worker.Worker{
			ID: id, Role: role, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"}, DPSize: 1, BlockSize: 16,
			Bootstrap: worker.Bootstrap{Host: "10.0.0.1", Port: 8998}, Draining: draining,
		})
	}
	s, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	return s
}
