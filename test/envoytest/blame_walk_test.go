//go:build e2e

package envoytest

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// A cell of the blame table is one sight of one leg.
type cell struct {
	leg   blame.Leg
	sight blame.Sight
}

func (c cell) String() string { return fmt.Sprintf("%s, %s", c.leg, c.sight) }

// A step brings a cell about, of each of its legs: once with a worker of two at fault,
// where a fresh attempt follows, and once with both, where the request ends without one.
type step struct {
	sight   blame.Sight
	legs    []blame.Leg
	fault   enginesim.Fault // of those who serve the leg
	envoy   func(*fleet, blame.Leg) (undo func())
	only    string // the fleet, where the leg's others do not have the same come about
	stream  bool
	within  time.Duration                 // the client's own deadline
	leaves  bool                          // the client goes once the leg is at its worker
	while   func(*fleet, []*stack.Worker) // runs then, of the workers at fault
	mates   bool                          // a mate serves: not without one
	lone    bool                          // no mate serves
	stuck   bool                          // the client goes once the leg has been late three times: attempts before have been overdue
	outcome string                        // without a fresh attempt; "": as the row says
}

var (
	anyLeg   = []blame.Leg{blame.Mirrored, blame.First, blame.Decode, blame.Alone}
	mirrored = []blame.Leg{blame.Mirrored}
	first    = []blame.Leg{blame.First}
	decode   = []blame.Leg{blame.Decode}
	prefills = []blame.Leg{blame.Mirrored, blame.First}
	servers  = []blame.Leg{blame.Decode, blame.Alone}
	whole    = []blame.Leg{blame.Mirrored, blame.First, blame.Alone} // not those who need a hand-off
)

func saying(status int) enginesim.Fault {
	return enginesim.Fault{Mode: enginesim.FaultError, Status: status}
}

// theWalk is what faults of workers, clients and Envoy's limits can bring about.
func theWalk() []step {
	hang := enginesim.Fault{Mode: enginesim.FaultHang}
	hangMid := enginesim.Fault{Mode: enginesim.FaultHang, When: enginesim.Mid}
	truncate := func(when enginesim.Moment, ms int) enginesim.Fault {
		return enginesim.Fault{Mode: enginesim.FaultTruncate, When: when, DelayMS: ms}
	}
	return []step{
		{sight: blame.Served, legs: anyLeg},
		{sight: blame.Unconnected, legs: anyLeg, fault: enginesim.Fault{Mode: enginesim.FaultRefuse, ForMS: 1000}, outcome: "refused"}, // nobody is left
		{sight: blame.Raced, legs: anyLeg, fault: truncate(enginesim.Before, 0), mates: true},
		{sight: blame.Lost, legs: anyLeg, fault: truncate(enginesim.Before, 0)},
		{sight: blame.Busy, legs: anyLeg, fault: saying(http.StatusTooManyRequests)},
		{sight: blame.Busy, legs: anyLeg, fault: saying(http.StatusRequestTimeout)},
		{sight: blame.Rejected, legs: anyLeg, fault: saying(http.StatusNotFound)},
		{sight: blame.Redirected, legs: anyLeg, fault: saying(http.StatusTemporaryRedirect)},
		{sight: blame.Errored, legs: whole, fault: saying(http.StatusBadGateway)},
		{sight: blame.Unfetched, legs: decode, fault: enginesim.Fault{Mode: enginesim.FaultError, When: enginesim.After, DelayMS: 300}},
		{sight: blame.Empty, legs: whole, fault: enginesim.Fault{Mode: enginesim.FaultEmpty}},
		{sight: blame.Failing, legs: prefills, fault: enginesim.Fault{Mode: enginesim.FaultFinishAbort}},
		{sight: blame.Unreadable, legs: first, fault: enginesim.Fault{Mode: enginesim.FaultBadHandoff, Form: enginesim.FormBroken}},
		{sight: blame.Uncomputed, legs: prefills, fault: enginesim.Fault{Mode: enginesim.FaultAborted}},
		{sight: blame.NoHandoff, legs: first, fault: enginesim.Fault{Mode: enginesim.FaultNoHandoff}},
		{sight: blame.BrokeOff, legs: prefills, fault: truncate(enginesim.Mid, 0)},
		{sight: blame.BrokeOff, legs: servers, fault: truncate(enginesim.Mid, 500), stream: true},
		{sight: blame.Unsent, legs: servers, fault: truncate(enginesim.Begun, 0), stream: true, outcome: "failed"},
		{sight: blame.Expired, legs: servers, fault: hangMid, stream: true, within: time.Second},
		{sight: blame.ClientLeft, legs: servers, fault: hangMid, stream: true, leaves: true},
		{sight: blame.ClientLeft, legs: servers, fault: hang, leaves: true},
		{sight: blame.Ended, legs: mirrored, fault: hang, within: 300 * time.Millisecond, lone: true, only: "mirrored"},
		{sight: blame.TimedOut, legs: servers, fault: hang, within: 300 * time.Millisecond, only: "first"},
		{sight: blame.Gone, legs: anyLeg, fault: hang, while: (*fleet).withdraw, outcome: "refused"},
		{sight: blame.Overdue, legs: prefills, fault: hang, mates: true},
		{sight: blame.Overdue, legs: servers, fault: hang, stream: true, mates: true, only: "first"}, // else prefill waits with it
		{sight: blame.Stuck, legs: prefills, fault: hang, stuck: true, outcome: "client_left"},
		{sight: blame.Stuck, legs: servers, fault: hang, stream: true, stuck: true, outcome: "client_left", only: "first"},
		{sight: blame.Overflow, legs: anyLeg, envoy: noRoomAtWorkers, lone: true},
		{sight: blame.NotStarted, legs: mirrored, envoy: noRoomForLegs, mates: true, only: "mirrored"},
	}
}

// elsewhere are the cells that other tests bring about, and assert.
var elsewhere = map[cell]func(*testing.T){
	{blame.Decode, blame.Stale}:         TestAHandOffIsNotSentAfterItsLease,
	{blame.Mirrored, blame.Unmade}:      TestAConnectionThatIsNotMadeIsNoProof,
	{blame.First, blame.Unmade}:         TestAConnectionThatIsNotMadeIsNoProof,
	{blame.Decode, blame.Unmade}:        TestAConnectionThatIsNotMadeIsNoProof,
	{blame.Alone, blame.Unmade}:         TestAConnectionThatIsNotMadeIsNoProof,
	{blame.Mirrored, blame.NotSent}:     TestWhatEnvoyKeepsFromAWorkerBlamesNobody,
	{blame.First, blame.NotSent}:        TestWhatEnvoyKeepsFromAWorkerBlamesNobody,
	{blame.First, blame.Ended}:          TestAPrefillThatBreaksOffForNobodyBlamesNobody,
	{blame.Decode, blame.NotSent}:       TestWhatEnvoyKeepsFromAWorkerBlamesNobody,
	{blame.Alone, blame.NotSent}:        TestWhatEnvoyKeepsFromAWorkerBlamesNobody,
	{blame.Mirrored, blame.Aborted}:     TestALegThatItsCarrierEndsBlamesNobody,
	{blame.Mirrored, blame.CarrierLost}: TestOneOfTwoReplicasIsKilled,
	{blame.Mirrored, blame.Unreadable}:  TestAPrefillAnswerThatCannotBeRead,
	{blame.Mirrored, blame.TimedOut}:    TestAPrefillThatEnvoysTimerEndsBlamesNobody,
	{blame.First, blame.TimedOut}:       TestAPrefillThatEnvoysTimerEndsBlamesNobody,
	{blame.First, blame.TooLong}:        TestAPrefillAnswerThatIsTooLongBlamesNobody,
	{blame.Decode, blame.Empty}:         TestAnAnswerThatEndsWithItsHeadIsDecodesFault,
	{blame.Decode, blame.Stalled}:       TestAnAnswerThatStandsStillIsEnded,
	{blame.Alone, blame.Stalled}:        TestAnAnswerThatStandsStillIsEnded,
	{blame.Decode, blame.Failing}:       TestAnAnswerThatEndsInAnAbortIsItsWorkersFault,
	{blame.Alone, blame.Failing}:        TestAnAnswerThatEndsInAnAbortIsItsWorkersFault,
	{blame.Decode, blame.Unfinished}:    TestAnEndThatNobodyTellsIsUnfinished,
	{blame.Alone, blame.Unfinished}:     TestAnEndThatNobodyTellsIsUnfinished,
}

// TestEveryCellOfTheBlameTableHasATest: of the walk, or another.
func TestEveryCellOfTheBlameTableHasATest(t *testing.T) {
	t.Parallel()
	has := map[cell]bool{}
	for _, x := range theWalk() {
		for _, l := range x.legs {
			has[cell{l, x.sight}] = true
		}
	}
	for c := range elsewhere {
		require.False(t, has[c], "%s: the walk has it", c)
		has[c] = true
	}
	for _, r := range blame.Rows() {
		c := cell{r.Leg, r.Sight}
		require.True(t, has[c], "%s: no test brings it about", c)
		delete(has, c)
	}
	require.Empty(t, has, "the table has no such cell")
}

// TestEveryCellOfTheBlameTableIsSeen walks them through a real Envoy, and holds who is
// charged, whom a fresh attempt avoids and how the request ends.
func TestEveryCellOfTheBlameTableIsSeen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		l    layout
		legs []blame.Leg
	}{
		{"mirrored", layoutOf(layout{prefill: 2, decode: 2, envoy: mirrors}, worker.SGLang), []blame.Leg{blame.Mirrored, blame.Decode}},
		{"beside", layoutOf(layout{prefill: 2, decode: 2}, worker.SGLang), []blame.Leg{blame.Mirrored, blame.Decode}},
		{"first", layoutOf(layout{prefill: 2, decode: 2, prefillArgs: shortLease}, worker.VLLM), []blame.Leg{blame.First, blame.Decode}},
		{"alone", layout{aggregated: 2}, []blame.Leg{blame.Alone}},
	} {
		c.l.patch = modifiable
		c.l.describe = func(f *fleet) {
			f.config = walkConfig + "prefill: {overdue_base: 1s, orphan_grace: 200ms}\n"
		}
		c.l.name = c.name
		either(t, c.l, func(t *testing.T, f *fleet) {
			for _, x := range theWalk() {
				for _, l := range c.legs {
					if slices.Contains(x.legs, l) && (x.only == "" || x.only == c.name || l == blame.Alone) {
						x.take(f, l)
					}
				}
			}
		})
	}
}

const walkConfig = `health: {probe_interval: 50ms}
answer: {overdue_base: 1500ms}
routing: {prefill: {mode: round-robin}, decode: {mode: round-robin}, aggregated: {mode: round-robin}}
`

// serving returns the workers that serve such legs.
func (f *fleet) serving(l blame.Leg) (out []*stack.Worker) {
	for _, w := range f.workers {
		if role := w.Info.Role; l == blame.Alone || (role == worker.Prefill) == l.Prefill() {
			out = append(out, w)
		}
	}
	return out
}

// withdraw takes workers out of discovery.
func (f *fleet) withdraw(ws []*stack.Worker) {
	f.publish(slices.DeleteFunc(slices.Clone(f.workers), func(w *stack.Worker) bool { return slices.Contains(ws, w) })...)
}

// saw returns how often it was seen of such a leg.
func (f *fleet) saw(l blame.Leg, s blame.Sight) float64 {
	return f.metric("baton_blame_total", fmt.Sprintf(`leg="%s"`, l.Label()), fmt.Sprintf(`seen="%s"`, s))
}

// awaitSaw waits until a sight of a leg has been judged, which is a moment after the
// request's end.
func (f *fleet) awaitSaw(l blame.Leg, s blame.Sight) {
	f.t.Helper()
	f.await(fmt.Sprintf("%s of the %s leg to be judged", s, l.Label()), func() bool { return f.saw(l, s) > 0 })
}

// charge is what a worker was charged with.
type charge struct{ worker, with string }

var chargeLine = regexp.MustCompile(`^baton_worker_charges_total\{charge="(\w+)",worker_id="(\d+)"\} (\S+)$`)

// charges returns how often each worker was charged with what.
func (f *fleet) charges() map[charge]string {
	out := map[charge]string{}
	for _, line := range f.series("baton_worker_charges_total") {
		if m := chargeLine.FindStringSubmatch(line); m != nil {
			out[charge{m[2], m[1]}] = m[3]
		}
	}
	return out
}

// chargedSince returns what workers were charged with: not what is held, and what was
// served only where the row is that.
func (f *fleet) chargedSince(before map[charge]string, row blame.Row) []charge {
	var out []charge
	for c, n := range f.charges() {
		if before[c] != n && c.with != blame.Held.Label() && (c.with == blame.Credit.Label()) == (row.Charge == blame.Credit) {
			out = append(out, c)
		}
	}
	return out
}

// attempts returns those of the newest request, the first one first.
func (f *fleet) attempts() (out []decisionSeen) {
	all := f.decisions()
	for _, d := range all {
		if d.RequestID == all[0].RequestID {
			out = append(out, d)
		}
	}
	slices.Reverse(out)
	return out
}

// at returns the worker of such a leg; "": nobody was picked.
func (d *decisionSeen) at(l blame.Leg) string {
	c := d.Decode
	if l.Prefill() {
		c = d.Prefill
	}
	if c == nil {
		return ""
	}
	return c.WorkerID
}

// avoided lists who could not be picked: an earlier attempt of the request has failed there.
func (d *decisionSeen) avoided() []string {
	out := []string{}
	for _, c := range []*choiceSeen{d.Prefill, d.Decode} {
		if c == nil {
			continue
		}
		for _, row := range c.Table {
			if !row.Eligible {
				out = append(out, row.WorkerID)
			}
		}
	}
	return out
}

// ask sends a request, and does meanwhile what the step says. It returns once the request
// is counted.
func (x *step) ask(f *fleet, l blame.Leg, name string, faulty []*stack.Worker) {
	ctx, leave := context.WithCancel(f.t.Context())
	defer leave()
	ended, seen := f.metric("baton_requests_total"), f.saw(l, x.sight)
	undo := func() {}
	if x.envoy != nil {
		undo = x.envoy(f, l)
	}
	var headers []string
	if x.within > 0 {
		headers = []string{"x-request-timeout-ms", fmt.Sprint(x.within.Milliseconds())}
	}
	prompt := "the cell is " + name
	done := make(chan *reply, 1)
	go func() { done <- f.send(ctx, "/v1/completions", completion(prompt, 8, x.stream), headers...) }()
	over := func() bool { return len(done) > 0 }
	switch {
	case x.envoy != nil && x.mates:
		f.await(name+" to be seen", func() bool { return over() || f.saw(l, x.sight) > seen })
		undo()
	case x.leaves, x.while != nil:
		f.await(name+": the leg to be at its worker", func() bool { return over() || f.running(faulty) > 0 })
		if x.while != nil && !over() {
			x.while(f, faulty)
		}
		if x.leaves {
			leave()
		}
	case x.stuck:
		for n := range 3 {
			f.await(fmt.Sprintf("%s, after %d times", name, n), func() bool { return over() || f.saw(l, x.sight) > seen+float64(n) })
		}
		leave()
	}
	<-done
	f.await(name+" to be counted", func() bool { return f.metric("baton_requests_total") > ended })
	if !x.mates {
		undo()
	}
}

func (x *step) take(f *fleet, l blame.Leg) {
	name := cell{l, x.sight}.String()
	if blame.Of(l, x.sight).Fresh != blame.No && !x.lone {
		x.withMate(f, l, name)
		f.renew(name)
	}
	if !x.mates {
		x.without(f, l, name)
		f.renew(name)
	}
}

// withMate has one of two workers at fault: the fresh attempt avoids whom the row says,
// and its answer proves whose fault it was.
func (x *step) withMate(f *fleet, l blame.Leg, name string) {
	t, row, faulty := f.t, blame.Of(l, x.sight), f.serving(l)[0]
	if x.sight == blame.Raced {
		f.inTurn(l)
	}
	charges := f.charges()
	var tried []decisionSeen
	for try := 1; ; try++ { // in turn: the faulty one is met; whether a refusal is asked of a mate depends
		require.LessOrEqual(t, try, 8, "%s: it makes a fresh attempt", name)
		if err := faulty.Sim.SetFault(f.ctx, x.fault); x.fault.Mode != enginesim.FaultRefuse { // whose port is closed
			require.NoError(t, err)
		}
		seen := f.saw(l, x.sight)
		x.ask(f, l, name, []*stack.Worker{faulty})
		tried = f.attempts()
		if x.sight != blame.Overdue && slices.ContainsFunc(tried, func(d decisionSeen) bool { return d.LegDetail == string(blame.Overdue) }) {
			f.renew(name) // a busy machine was late: what was charged is of both
			charges, faulty = f.charges(), f.serving(l)[0]
			continue
		}
		if f.saw(l, x.sight) > seen && len(tried) > 1 {
			break
		}
	}
	require.Equal(t, "retried", tried[0].Outcome, name)
	require.Equal(t, "ok", tried[len(tried)-1].Outcome, "%s: a mate serves", name)
	avoids := map[blame.Avoid][]string{blame.Nobody: {}, blame.It: {tried[0].at(l)}, blame.Both: nil}[row.Avoid]
	if row.Avoid == blame.Both {
		avoids = []string{tried[0].at(blame.Mirrored), tried[0].at(blame.Decode)}
	}
	if x.sight != blame.Gone { // there is nobody to be avoided any more
		require.ElementsMatch(t, avoids, tried[1].avoided(), "%s: a fresh attempt avoids", name)
	}
	want := []charge{}
	switch {
	case row.Pair:
		want = []charge{{tried[0].at(blame.Mirrored), "handoff_failed"}, {tried[0].at(blame.Decode), "handoff_failed"}}
	case row.Charge != blame.None:
		want = []charge{{tried[0].at(l), row.Charge.Label()}}
	}
	require.ElementsMatch(t, want, f.chargedSince(charges, row), "%s: a mate has served: charged", name)
}

// inTurn has each worker that serves the leg answer a request.
func (f *fleet) inTurn(l blame.Leg) {
	f.t.Helper()
	for range f.serving(l) {
		requireAnswer(f.t, f.send(f.t.Context(), "/v1/completions", completion("in turn", 2, true)), "in turn", 2)
	}
	f.await("them to be counted", func() bool { return f.metric("baton_requests_total") == float64(f.sent.Load()) })
}

// without has all who serve the leg at fault.
func (x *step) without(f *fleet, l blame.Leg, name string) {
	t, row := f.t, blame.Of(l, x.sight)
	if x.stuck { // how long each of them takes is learned: else each may take thrice as long
		f.inTurn(l)
	}
	f.faultAll(f.serving(l), x.fault)
	if x.sight == blame.Lost { // on the connections that there are: the next request has new ones
		ended := f.metric("baton_requests_total")
		f.send(t.Context(), "/v1/completions", completion("old connections end", 2, false))
		f.await("it to be counted", func() bool { return f.metric("baton_requests_total") > ended })
	}
	outcome := cmp.Or(x.outcome, string(row.Outcome), "ok")
	before, seen, charges := f.outcomes(outcome), f.saw(l, x.sight), f.charges()
	x.ask(f, l, name, f.serving(l))
	f.await(name+" to be seen", func() bool { return f.saw(l, x.sight) > seen })
	require.Equal(t, before+1, f.outcomes(outcome), "%s ends as %s", name, outcome)
	tried := f.attempts()
	if row.Fresh == blame.No && !x.stuck && row.Outcome != blame.Retried {
		require.Len(t, tried, 1, "%s: no fresh attempt", name)
	}
	if row.Avoid == blame.Nobody && len(tried) > 1 && !x.stuck {
		require.Empty(t, tried[1].avoided(), name)
	}
	want := x.chargedWithout(l, row, tried)
	f.await(name+": the charges", func() bool { return len(f.chargedSince(charges, row)) >= len(want) }) // the access log may tell of an attempt after the request's end
	require.ElementsMatch(t, want, f.chargedSince(charges, row), "%s: charged", name)
}

// chargedWithout is who is charged where all who serve the leg are at fault: what waits
// for a mate's word is nobody's once two have failed alike.
func (x *step) chargedWithout(l blame.Leg, row blame.Row, tried []decisionSeen) []charge {
	at := map[string]bool{}
	for _, d := range tried {
		if id := d.at(l); id != "" {
			at[id] = true
		}
	}
	last := &tried[len(tried)-1]
	var out []charge
	switch {
	case row.Charge == blame.None, x.sight == blame.Gone:
		return nil
	case row.Charge == blame.Credit:
		for _, l := range []blame.Leg{blame.Mirrored, blame.Decode} {
			if id := last.at(l); id != "" {
				out = append(out, charge{id, row.Charge.Label()})
			}
		}
		return out
	case row.Charge != blame.Connect && row.Charge != blame.Break && len(at) > 1:
		return nil
	}
	for id := range at {
		out = append(out, charge{id, row.Charge.Label()})
	}
	return out
}

// renew ends the faults and gives every worker another id: nothing is known of it, and the
// next step begins as the first.
func (f *fleet) renew(name string) {
	f.t.Helper()
	for _, w := range f.workers {
		f.await("its port to be open again", func() bool { return w.Sim.SetFault(f.ctx, enginesim.Fault{}) == nil })
		w.Info.ID += 1000
	}
	f.publish(f.workers...)
	f.await("the plugin to know the workers after "+name, func() bool {
		return f.metric("baton_workers", `state="healthy"`) == float64(len(f.workers)) &&
			f.metric("baton_keys", `can_serve="true"`) == 1 && f.knows(f.workers...)
	})
	f.await("all to be counted", func() bool { return f.metric("baton_requests_total") == float64(f.sent.Load()) })
	requireAnswer(f.t, f.send(f.t.Context(), "/v1/completions", completion("all is well again", 2, true)), "all is well again", 2)
	f.await("it to be counted", func() bool { return f.metric("baton_requests_total") == float64(f.sent.Load()) })
}

// knows reports whether the plugin shows the load of each of the workers.
func (f *fleet) knows(ws ...*stack.Worker) bool {
	return !slices.ContainsFunc(ws, func(w *stack.Worker) bool {
		_, known := f.gauge("baton_worker_decode_requests", fmt.Sprintf("worker_id=%q", w.Info.ID))
		return !known
	})
}
