package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// kind is what goes wrong.
type kind string

// The kinds of faults. Those of workers but the first four are injected into
// the simulated engine and strike one request, or all for a while.
const (
	killWorker   kind = "kill"   // the engine and what registers it, -9; back under a new id
	killEngine   kind = "crash"  // the engine alone, -9; back under a new id
	stopWorker   kind = "stop"   // SIGSTOP, then SIGCONT
	drainWorker  kind = "drain"  // it leaves discovery in order, then comes back
	dieInRequest kind = "die"    // the engine ends in the middle of a request
	hang         kind = "hang"   // requests are accepted and never answered
	slow         kind = "slow"   // everything takes many times as long
	refuse       kind = "refuse" // the port is closed
	serverError  kind = "5xx"    // 500, 502 or 503
	tooMany      kind = "429"
	refusal      kind = "4xx"        // 400, 401, 404 or 422: what a good request does not deserve
	nothing      kind = "empty"      // 200, and no answer in it
	cut          kind = "cut"        // the connection is closed in the middle of the answer
	abort        kind = "abort"      // prefill: 200 with finish reason abort
	early        kind = "early"      // decode: 200 before it has the KV
	noHandoff    kind = "no-handoff" // prefill of vLLM, TensorRT-LLM: null in its place
	badHandoff   kind = "bad-handoff"

	termPlugin kind = "plugin-term"
	killPlugin kind = "plugin-kill"
	termEnvoy  kind = "envoy-term"
	killEnvoy  kind = "envoy-kill"

	stopEtcd kind = "etcd-stop" // SIGSTOP, then SIGCONT
	killEtcd kind = "etcd-kill" // -9, then started again with its data

	// machineStall is not planned: this process itself was not run for a while,
	// so that nobody's clocks can be trusted.
	machineStall kind = "stall"
)

// target is what a fault strikes: a worker of a model, a lane, or etcd.
type target struct {
	Model string // of a worker; "" for the others
	Role  worker.Role
	Index int // of the worker in its role; of the lane
}

func (t target) String() string {
	if t.Model == "" {
		return fmt.Sprintf("lane %d", t.Index)
	}
	return fmt.Sprintf("%s %s %d", t.Model, t.Role, t.Index)
}

// fault is one thing that goes wrong: at and how long after it, counted from
// the start of the run.
type fault struct {
	At, For time.Duration
	Kind    kind
	On      target // of etcd: zero
	Moment  string // before, mid or after, for those that strike within a request
	Count   int    // requests that it strikes; 0: all, for For
	Status  int    // of serverError and refusal
	Factor  float64
	Form    string // of badHandoff
	Move    bool   // it comes back at another address
}

func (f fault) String() string {
	s := string(f.Kind)
	if !f.etcd() && !f.stall() {
		s += " " + f.On.String()
	}
	s += " for " + f.For.Round(time.Millisecond).String()
	if f.Moment != "" {
		s += " " + f.Moment
	}
	if f.Count > 0 {
		s += fmt.Sprintf(" ×%d", f.Count)
	}
	return s
}

func (f fault) stall() bool { return f.Kind == machineStall }
func (f fault) etcd() bool  { return f.Kind == stopEtcd || f.Kind == killEtcd }
func (f fault) lane() bool  { return f.On.Model == "" && !f.etcd() && !f.stall() }

// weighted is a kind and how often it is drawn.
type weighted struct {
	kind   kind
	weight int
}

// faultsOf returns what may befall a worker.
func faultsOf(m model, role worker.Role) []weighted {
	w := []weighted{
		{killWorker, 4}, {killEngine, 2}, {stopWorker, 3}, {drainWorker, 2}, {dieInRequest, 3},
		{hang, 3}, {slow, 4}, {refuse, 3}, {serverError, 4}, {cut, 4}, {tooMany, 2}, {refusal, 3}, {nothing, 2},
	}
	if role == worker.Decode {
		return append(w, weighted{early, 2})
	}
	w = append(w, weighted{abort, 2})
	if m.Engine != worker.SGLang {
		w = append(w, weighted{noHandoff, 2}, weighted{badHandoff, 2})
	}
	return w
}

func draw(rng *rand.Rand, from []weighted) kind {
	sum := 0
	for _, w := range from {
		sum += w.weight
	}
	n := rng.IntN(sum)
	for _, w := range from {
		n -= w.weight
		if n < 0 {
			return w.kind
		}
	}
	panic("not reached")
}

func between(rng *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(rng.Int64N(int64(to-from)))
}

// planFaults draws the faults of a run: about one each `every`, the last of
// which begin before length is over. Nothing is struck again while it is
// struck, so that each fault's trace can be told apart. The same arguments give
// the same plan.
func planFaults(seed uint64, length, every time.Duration, models []model, lanes int, etcd bool) []fault {
	rng := rand.New(rand.NewPCG(seed, 1))
	busy := map[target]time.Duration{}
	var etcdBusy time.Duration
	var out []fault
	for at := every; at < length; at += between(rng, every/4, every*7/4) {
		f := fault{At: at}
		switch n := rng.IntN(100); {
		case n < 6:
			f.On.Index = rng.IntN(lanes)
			f.Kind = draw(rng, []weighted{{termPlugin, 3}, {killPlugin, 3}, {termEnvoy, 1}, {killEnvoy, 1}})
			f.For = between(rng, 50*time.Millisecond, 1500*time.Millisecond)
		case n < 10 && etcd:
			f.Kind = draw(rng, []weighted{{stopEtcd, 1}, {killEtcd, 1}})
			f.For = between(rng, 300*time.Millisecond, 5*time.Second)
		default:
			f = workerFault(rng, f, models)
		}
		until := busy[f.On]
		if f.etcd() {
			until = etcdBusy
		}
		if until > at {
			continue
		}
		until = at + f.For + recovery
		if f.etcd() {
			etcdBusy = until
		} else {
			busy[f.On] = until
		}
		out = append(out, f)
	}
	return out
}

// recovery is left between two faults of one target.
const recovery = 500 * time.Millisecond

func workerFault(rng *rand.Rand, f fault, models []model) fault {
	m := models[rng.IntN(len(models))]
	f.On = target{Model: m.Name, Role: worker.Prefill, Index: rng.IntN(m.Prefills + m.Decodes)}
	if f.On.Index >= m.Prefills {
		f.On.Role, f.On.Index = worker.Decode, f.On.Index-m.Prefills
	}
	f.Kind = draw(rng, faultsOf(m, f.On.Role))
	f.For = between(rng, 200*time.Millisecond, 4*time.Second)
	moments := []string{"before", "mid", "after"}
	switch f.Kind {
	case killWorker, killEngine, drainWorker:
		f.Move = rng.IntN(2) == 0
	case dieInRequest:
		f.Move = rng.IntN(2) == 0
		f.Moment = moments[rng.IntN(3)]
	case slow:
		f.Factor = float64(5 + rng.IntN(60))
	case hang, cut:
		f.Moment = moments[rng.IntN(3)]
		f.Count = rng.IntN(4)
	case abort, tooMany:
		f.Count = rng.IntN(4)
	case refusal:
		f.Status = []int{400, 401, 404, 422}[rng.IntN(4)]
		f.Count = rng.IntN(4)
	case nothing:
		f.Moment = []string{"before", "begun"}[rng.IntN(2)]
		f.Count = rng.IntN(4)
	case serverError:
		f.Moment = append(moments, "begun")[rng.IntN(4)]
		f.Status = []int{500, 502, 503}[rng.IntN(3)]
		f.Count = rng.IntN(4)
	case badHandoff:
		f.Form = []string{"text", "list", "twice", "broken"}[rng.IntN(4)]
	default: // the others have no more to say
	}
	return f
}
