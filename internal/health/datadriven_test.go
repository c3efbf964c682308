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
//	config [share=0.5] [errors=3] [probes=200]   first, if at all
//	workers [unasked]                 those who are new have been asked at their arrival, unless it says unasked; a worker is: id role [port] [draining] [models=a,b] [ports=4]
//	                                  [bootstrap=10.0.0.9]; with ports each rank has one of its own; rank 2 is then 7/2
//	report id=7 outcome=server-error [times=2] [request=1] [since=0.5] [proven]
//	suspect id=7 outcome=overdue
//	handoff prefill=7 decode=3        it failed; with served: it did not
//	mate id=7                         may a request that it has refused be asked of another?
//	mate-served
//	probe [for=0]                     what begins now, and for so many seconds, and when the next will
//	result id=7 as=well [to=arrival]  of the probe under way, or of the question at arrival, at the endpoint or, to=bootstrap, there
//	                                  well, answered, unwell, unreachable, unconnected, silent, late, unclear, looped
//	result id=7 silent-to=page-late   not yet: nothing has come, or not the page; or: silent
//	allows                            who may be picked
//	begin id=7 name=a                 a request was given to 7
//	end name=a
//
// Jitter is taken out: waits are what the configuration says.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{t: t, trials: map[string]begun{}, probing: map[asking]probe{}}
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
	probing map[asking]probe
}

// asking says of which question a result is.
type asking struct {
	rank worker.Rank
	to   string // empty: a probe
}

var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// noJitter is a source whose Float64 is 0.5.
type noJitter struct{}

func (noJitter) Uint64() uint64 { return 1 << 52 }

func (s *scenario) start(c Config) {
	c.Hooks = Hooks{
		Transition: func(x Transition) {
			fmt.Fprintf(&s.out, "%s: %v -> %v (%s)\n", s.name(x.Rank), x.From, x.To, x.Reason)
			if x.Mute() {
				fmt.Fprintf(&s.out, "%s: what waits for it may go elsewhere\n", s.name(x.Rank))
			}
		},
		Spared: func(x worker.Rank, r Reason, _ time.Time) {
			fmt.Fprintf(&s.out, "%s: spared (%s)\n", s.name(x), r)
		},
	}
	tr := New(c)
	tr.rng = newRand(noJitter{})
	s.tr, s.now = tr, zero
}

func (s *scenario) status() {
	for _, w := range s.tr.Status() {
		if w == (RankHealth{Rank: w.Rank, OwnPort: w.OwnPort, State: Healthy, Reason: w.Reason, Since: w.Since, Unheard: w.Unheard}) {
			continue
		}
		fmt.Fprintf(&s.out, "  %s %v", s.name(w.Rank), w.State)
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
		if w.Suspected {
			s.out.WriteString(", suspected")
		}
		s.out.WriteByte('\n')
	}
}

// name is what the scenarios call a rank: its worker's id, where it has no port of its own.
func (s *scenario) name(r worker.Rank) string {
	if w := s.snap.Worker(r.ID); w != nil && w.Ports() > 1 {
		return r.String()
	}
	return r.ID.String()
}

func (s *scenario) do(d *datadriven.TestData) {
	args := map[string]string{}
	for _, a := range d.CmdArgs {
		args[a.Key] = strings.Join(a.Vals, ",")
	}
	if at := args["at"]; at != "" {
		next := zero.Add(s.seconds(at))
		require.False(s.t, next.Before(s.now), d.Pos)
		s.now = next
	}
	ids := map[string]worker.Rank{}
	for _, key := range []string{"id", "prefill", "decode"} {
		if args[key] != "" {
			id, dp, _ := strings.Cut(args[key], "/")
			n, err := worker.ParseID(id)
			require.NoError(s.t, err, d.Pos)
			i, _ := strconv.Atoi(dp)
			ids[key] = worker.Rank{ID: n, DPRank: worker.DPRank(i)}
		}
	}
	id := ids["id"]
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
		if v := args["probes"]; v != "" {
			n, err := strconv.Atoi(v)
			require.NoError(s.t, err)
			c.MaxProbes = n
		}
		s.start(c)
	case "workers":
		s.snap = parseWorkers(s.t, d.Input)
		s.tr.Update(s.snap, s.now)
		if !d.HasArg("unasked") {
			haveAsked(s.tr)
		}
	case "report":
		times := 1
		if v := args["times"]; v != "" {
			times, _ = strconv.Atoi(v)
		}
		r := Report{Outcome: outcome(s.t, args["outcome"]), Proven: d.HasArg("proven")}
		if v := args["request"]; v != "" {
			r.Request, _ = strconv.ParseUint(v, 10, 64)
		}
		if v := args["since"]; v != "" {
			r.Since = zero.Add(s.seconds(v))
		}
		for range times {
			s.tr.Report(id, r, s.now)
		}
	case "suspect":
		s.tr.Suspect(id, s.now)
	case "handoff":
		if d.HasArg("served") {
			s.tr.HandoffServed(ids["prefill"], ids["decode"])
		} else if blamed := s.tr.HandoffFailed(ids["prefill"], ids["decode"], s.now); blamed.ID != 0 {
			fmt.Fprintf(&s.out, "blamed: %s\n", s.name(blamed))
		}
	case "mate":
		fmt.Fprintln(&s.out, map[bool]string{true: "yes", false: "no"}[s.tr.AskMate(id)])
	case "mate-served":
		s.tr.MateServed()
	case "probe":
		s.probe(s.seconds(args["for"]))
	case "result":
		if to := args["silent-to"]; to != "" {
			s.tr.unanswered(id, s.probing[asking{rank: id}].number, Reason(to), s.now)
			return
		}
		v := slices.Index([]string{
			unclear: "unclear", well: "well", answered: "answered", unwell: "unwell", unreachable: "unreachable", unconnected: "unconnected", silent: "silent", late: "late", looped: "looped",
		}, args["as"])
		require.GreaterOrEqual(s.t, v, 0, d.Pos)
		s.tr.probed(s.probing[asking{id, args["to"]}], verdict(v), s.now)
	case "allows":
		var allowed []string
		for _, w := range s.snap.Workers() {
			for dp := range w.Ports() {
				if r := (worker.Rank{ID: w.ID, DPRank: worker.DPRank(dp)}); s.tr.Allows(r) {
					allowed = append(allowed, s.name(r))
				}
			}
		}
		fmt.Fprintf(&s.out, "allowed: %s\n", strings.Join(allowed, " "))
	case "begin":
		b := begun{id, s.tr.Begin(id)}
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

func (s *scenario) seconds(text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text + "s")
	require.NoError(s.t, err)
	return d
}

// probe begins what is due within the time, as Run would, and takes the gaps
// between probes that are due together for nothing.
func (s *scenario) probe(within time.Duration) {
	for at := s.now; ; {
		if p, any := s.tr.begin(at); any {
			to := ""
			if p.of == onArrival {
				to = "arrival"
				if p.turn == &p.turn.of.atBootstrap {
					to = "bootstrap"
				}
			}
			s.probing[asking{p.rank, to}] = p
			fmt.Fprintf(&s.out, "get %s%s", p.at, p.path)
			if p.within != s.tr.cfg.ProbeTimeout {
				fmt.Fprintf(&s.out, " within %v", p.within)
			}
			if after := at.Sub(s.now); after > 0 {
				fmt.Fprintf(&s.out, " after %v", after)
			}
			s.out.WriteByte('\n')
		}
		next, any := s.tr.nextDue()
		if !any {
			return
		}
		if next.Sub(s.now) > within+100*time.Millisecond {
			fmt.Fprintf(&s.out, "next at %v\n", next.Sub(zero))
			return
		}
		at = next
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
		port, draining, models, ranks, bootstrap := "8000", false, []string{"m"}, 1, "10.0.0.1"
		for _, x := range f[2:] {
			if n, ports := strings.CutPrefix(x, "ports="); ports {
				ranks, _ = strconv.Atoi(n)
			} else if host, elsewhere := strings.CutPrefix(x, "bootstrap="); elsewhere {
				bootstrap = host
			} else if list, named := strings.CutPrefix(x, "models="); named {
				models = strings.Split(list, ",")
			} else if x == "draining" {
				draining = true
			} else {
				port = x
			}
		}
		e, err := worker.ParseEndpoint(fmt.Sprintf("10.0.0.%d:%s", id, port))
		require.NoError(t, err)
		ws = append(ws, &worker.Worker{
			ID: id, Role: role, Engine: worker.SGLang, Endpoint: e, Models: models, DPSize: uint32(ranks), PortPerRank: ranks > 1, BlockSize: 16,
			Bootstrap: worker.Bootstrap{Host: bootstrap, Port: 8998}, Draining: draining,
		})
	}
	s, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	return s
}
