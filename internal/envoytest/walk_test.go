//go:build e2e

package envoytest

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/enginesim"
	"github.com/seed-60ae5743/baton/internal/stack"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A step brings about one row of the blame table: what the workers of the leg do, those
// of the other leg, and the client.
type step struct {
	sight   blame.Sight
	legs    []blame.Leg
	fault   enginesim.Fault
	only    string // the fleet, where prefill beside decode does not have the same come about
	stream  bool
	within  time.Duration           // the client's own deadline
	leaves  func(*fleet, blame.Leg) // the client goes once this has returned
	while   func(*fleet, blame.Leg) // it runs
	outcome string                  // of the request; "": as the row says
	also    blame.Sight             // of the same leg, on the way there; "": nothing
	more    bool                    // fresh attempts come of more than the row
}

var (
	anyLeg   = []blame.Leg{blame.Mirrored, blame.First, blame.Decode, blame.Alone}
	prefills = []blame.Leg{blame.Mirrored, blame.First}
	servers  = []blame.Leg{blame.Decode, blame.Alone}
)

func (f *fleet) atWork(l blame.Leg) {
	f.await("the leg to be at its worker", func() bool {
		return slices.ContainsFunc(f.serving(l), func(w *stack.Worker) bool {
			s, _ := f.state(w)
			return s.Running > 0
		})
	})
}

func saying(status int) enginesim.Fault {
	return enginesim.Fault{Mode: enginesim.FaultError, Status: status}
}

// theWalk is every row that faults of workers and clients can bring about.
func theWalk() []step {
	hang := enginesim.Fault{Mode: enginesim.FaultHang}
	hangMid := enginesim.Fault{Mode: enginesim.FaultHang, When: enginesim.Mid}
	cut := enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Mid, DelayMS: 500}
	return []step{
		{sight: blame.Served, legs: anyLeg, outcome: "ok"},
		{sight: blame.Unconnected, legs: anyLeg, fault: enginesim.Fault{Mode: enginesim.FaultRefuse, ForMS: 1000}, outcome: "refused"}, // nobody is left
		{sight: blame.Lost, legs: anyLeg, fault: enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Before}},
		{sight: blame.Busy, legs: anyLeg, fault: saying(http.StatusTooManyRequests)},
		{sight: blame.Busy, legs: anyLeg, fault: saying(http.StatusRequestTimeout)},
		{sight: blame.Rejected, legs: anyLeg, fault: saying(http.StatusNotFound)},
		{sight: blame.Errored, legs: []blame.Leg{blame.Mirrored, blame.First, blame.Alone}, fault: saying(http.StatusBadGateway)},
		{sight: blame.Unfetched, legs: []blame.Leg{blame.Decode}, fault: enginesim.Fault{Mode: enginesim.FaultError, When: enginesim.After, DelayMS: 300}},
		{sight: blame.Empty, legs: []blame.Leg{blame.Mirrored, blame.First, blame.Alone}, fault: enginesim.Fault{Mode: enginesim.FaultEmpty}},
		{sight: blame.Failing, legs: prefills, fault: enginesim.Fault{Mode: enginesim.FaultFinishAbort}},
		{sight: blame.Unreadable, legs: []blame.Leg{blame.First}, fault: enginesim.Fault{Mode: enginesim.FaultBadHandoff, Form: enginesim.FormBroken}},
		{sight: blame.NoHandoff, legs: []blame.Leg{blame.First}, fault: enginesim.Fault{Mode: enginesim.FaultNoHandoff}},
		{sight: blame.BrokeOff, legs: prefills, fault: enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Mid}},
		{sight: blame.BrokeOff, legs: servers, fault: cut, stream: true},
		{sight: blame.Unsent, legs: servers, fault: enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Begun}, stream: true, outcome: "failed", more: true},
		{sight: blame.Expired, legs: servers, fault: hangMid, stream: true, within: time.Second},
		{sight: blame.ClientLeft, legs: servers, fault: hangMid, stream: true, leaves: (*fleet).atWork},
		{sight: blame.ClientLeft, legs: servers, fault: hang, leaves: (*fleet).atWork},
		{sight: blame.Ended, legs: []blame.Leg{blame.Mirrored}, fault: hang, within: 300 * time.Millisecond, more: true},
		{sight: blame.TimedOut, legs: []blame.Leg{blame.Decode}, fault: hang, within: 300 * time.Millisecond, only: "prefill first"},
		{sight: blame.TimedOut, legs: []blame.Leg{blame.First, blame.Alone}, fault: hang, within: 300 * time.Millisecond},
		{sight: blame.Stuck, legs: prefills, fault: hang, within: 4 * time.Second, also: blame.Overdue, outcome: "failed", more: true},
		{sight: blame.Gone, legs: anyLeg, fault: hang, outcome: "refused", while: func(f *fleet, l blame.Leg) {
			f.atWork(l)
			f.publish(slices.DeleteFunc(slices.Clone(f.workers), func(w *stack.Worker) bool { return slices.Contains(f.serving(l), w) })...)
		}},
	}
}

// serving returns the workers that serve such legs.
func (f *fleet) serving(l blame.Leg) (out []*stack.Worker) {
	for _, w := range f.workers {
		if role := w.Info.Role; l == blame.Alone || (role == worker.Prefill) == l.Prefill() {
			out = append(out, w)
		}
	}
	return out
}

// saw returns how often it was seen of such a leg.
func (f *fleet) saw(l blame.Leg, s blame.Sight) float64 {
	return f.metric("baton_blame_total", fmt.Sprintf(`leg="%s"`, l.Label()), fmt.Sprintf(`seen="%s"`, s))
}

// take brings the row about and holds that it was seen, that a fresh attempt was made
// where the row has one, and how the request ended.
func (x *step) take(f *fleet, l blame.Leg) {
	t := f.t
	row := blame.Of(l, x.sight)
	name := fmt.Sprintf("%s, %s", l, x.sight)
	f.faultAll(f.serving(l), x.fault)
	outcome := cmp.Or(x.outcome, string(row.Outcome))
	before := f.outcomes(outcome)
	ended, fresh, seen := f.metric("baton_requests_total"), f.metric("baton_fresh_picks_total"), f.saw(l, x.sight)
	var headers []string
	if x.within > 0 {
		headers = []string{"x-request-timeout-ms", fmt.Sprint(x.within.Milliseconds())}
	}
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan *reply, 1)
	go func() {
		done <- f.send(ctx, "/v1/completions", completion("the row is "+name, 8, x.stream), headers...)
	}()
	if x.while != nil {
		x.while(f, l)
	}
	if x.leaves != nil {
		x.leaves(f, l)
		leave()
	}
	<-done
	leave()
	f.await(name+" to have ended", func() bool { return f.metric("baton_requests_total") > ended && f.saw(l, x.sight) > seen })
	if x.also != "" {
		require.Positive(t, f.saw(l, x.also), "%s: %s", name, x.also)
	}
	if outcome != "" {
		require.Equal(t, before+1, f.outcomes(outcome), "%s ends as %s", name, outcome)
	}
	if !x.more && row.Fresh != blame.IfOdd {
		got := f.metric("baton_fresh_picks_total") - fresh
		require.Equal(t, row.Fresh == blame.Yes || row.Fresh == blame.IfSpare, got > 0, "%s: %g fresh picks", name, got)
	}
	x.heal(f, name)
}

// heal ends the fault; the next step begins when a request is served.
func (x *step) heal(f *fleet, name string) {
	for _, w := range f.workers {
		f.await("its port to be open again", func() bool { return w.Sim.SetFault(f.ctx, enginesim.Fault{}) == nil })
	}
	f.publish(f.workers...)
	f.await("the fleet to serve again after "+name, func() bool {
		return f.send(f.t.Context(), "/v1/completions", completion("all is well again", 2, false)).status == http.StatusOK
	})
	f.await("all to be counted", func() bool { return f.metric("baton_requests_total") == float64(f.sent.Load()) })
}

const walkConfig = "health: {probe_interval: 50ms}\nprefill: {overdue_base: 1s, orphan_grace: 200ms}\n"

// elsewhere are the rows that other tests bring about, of prefill legs and of those that
// serve; the tests assert it.
var elsewhere = map[blame.Sight]func(*testing.T){
	blame.NotStarted:  TestALegThatNeverStartsGetsAFreshPick,
	blame.NotSent:     TestWhatEnvoyKeepsFromAWorkerBlamesNobody,
	blame.Overflow:    TestWhatEnvoyKeepsFromAWorkerBlamesNobody,
	blame.Overdue:     TestAHungDecodeIsOverdue,
	blame.Stuck:       TestAHungDecodeIsOverdue,
	blame.Aborted:     TestALegThatItsCarrierEndsBlamesNobody,
	blame.CarrierLost: TestOneOfTwoReplicasIsKilled,
	blame.TooLong:     TestAPrefillAnswerThatIsTooLongBlamesNobody,
	blame.Unfinished:  TestAnEndThatNobodyTellsIsUnfinished,
}

// TestEveryRowOfTheBlameTableIsSeen walks the rows through a real Envoy.
func TestEveryRowOfTheBlameTableIsSeen(t *testing.T) {
	t.Parallel()
	type row struct {
		sight   blame.Sight
		prefill bool
	}
	walked := map[row]bool{}
	for _, x := range theWalk() {
		for _, l := range x.legs {
			walked[row{x.sight, l.Prefill()}], walked[row{x.also, l.Prefill()}] = true, true
		}
	}
	for _, r := range blame.Rows() {
		at := row{r.Sight, r.Leg.Prefill()}
		require.True(t, walked[at] || r.Leg.Prefill() && r.Sight == blame.ClientLeft || elsewhere[r.Sight] != nil, "no test brings about %v", at)
	}
	for _, c := range []struct {
		name string
		l    layout
		legs []blame.Leg
	}{
		{"mirrored", layoutOf(layout{prefill: 2, decode: 2}, worker.SGLang), []blame.Leg{blame.Mirrored, blame.Decode}},
		{"prefill first", layoutOf(layout{prefill: 2, decode: 2, prefillArgs: shortLease}, worker.VLLM), []blame.Leg{blame.First, blame.Decode}},
		{"alone", layout{aggregated: 2}, []blame.Leg{blame.Alone}},
	} {
		c.l.config = walkConfig
		t.Run(c.name, func(t *testing.T) {
			both(t, c.l, func(t *testing.T, f *fleet) {
				for _, x := range theWalk() {
					for _, l := range c.legs {
						if slices.Contains(x.legs, l) && (x.only == "" || x.only == c.name) {
							x.take(f, l)
						}
					}
				}
			})
		})
	}
}
