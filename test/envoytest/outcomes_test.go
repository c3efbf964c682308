//go:build e2e

package envoytest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim"
)

// A requestEnd is how one request ends, and what brings it about.
type requestEnd struct {
	outcome, code string
	status        int // that the client sees; 0: none
	fault         enginesim.Fault
	body          string        // default: a streamed completion
	within        time.Duration // the client's own deadline
	leaves        bool          // once its worker has the request
}

func requestEnds() []requestEnd {
	ask := completion("how does it end", 8, true)
	hang := enginesim.Fault{Mode: enginesim.FaultHang, When: enginesim.Mid}
	return []requestEnd{
		{outcome: "ok", code: "ok", status: 200, body: ask},
		{outcome: "rejected", code: "decode_rejected", status: 404, body: ask, fault: saying(404)},
		{outcome: "rejected", code: "decode_rejected", status: 429, body: ask, fault: saying(429)},
		{outcome: "failed", code: "decode_failed", status: 500, body: ask, fault: saying(500)},
		{outcome: "failed", code: "deadline_exceeded", status: 504, body: ask, fault: enginesim.Fault{Mode: enginesim.FaultHang}, within: 300 * time.Millisecond},
		{outcome: "cut", code: "answer_cut", status: 200, body: ask, fault: enginesim.Fault{Mode: enginesim.FaultTruncate, When: enginesim.Mid, DelayMS: 500}}, // its first half has gone by then
		{outcome: "cut", code: "deadline_exceeded", status: 200, body: ask, fault: hang, within: time.Second},
		{outcome: "client_left", code: "client_left", body: ask, fault: hang, leaves: true},
		{outcome: "refused", code: "model_not_found", status: 404, body: `{"model":"another","prompt":"how does it end"}`},
		{outcome: "answered", code: "answered", status: 200, body: `{"model":"m","prompt":"who would serve it","nvext":{"annotations":["query_instance_id:"]}}`},
	}
}

// TestEveryRequestEndsInItsTrueOutcome: one, and the same in the metrics, the journal, on
// the page, in the trace and in the log.
func TestEveryRequestEndsInItsTrueOutcome(t *testing.T) {
	t.Parallel()
	for _, l := range []layout{{aggregated: 1}, {prefill: 1, decode: 1}} {
		t.Run(fmt.Sprintf("%d prefill workers", l.prefill), func(t *testing.T) {
			t.Parallel()
			c := newCollector(t)
			l.config, l.envoy = fmt.Sprintf("trace: {endpoint: \"127.0.0.1:%d\"}\n", c.port), trusting("prerouted")
			both(t, l, func(t *testing.T, f *fleet) {
				var traced []func()
				for i, x := range requestEnds() {
					traced = append(traced, x.require(f, c, fmt.Sprintf("%08x%08x%016x", i+1, len(f.prefill), map[bool]int{true: 1}[f.fullDuplex])))
				}
				for _, check := range traced { // spans come a second later
					check()
				}
			})
		})
	}
}

// require has a request end so, and returns what holds it to its trace.
func (x *requestEnd) require(f *fleet, c *collector, trace string) (traced func()) {
	t, name := f.t, fmt.Sprintf("%s %s %d", x.outcome, x.code, x.status)
	w := f.workers[len(f.prefill)]
	f.fault(w, x.fault)
	counts := func() (all, so float64) {
		return f.metric("baton_requests_total"), f.outcomes(x.outcome, fmt.Sprintf("code=%q", x.code))
	}
	ofWorker := func() float64 {
		return f.metric("baton_worker_attempts_total", fmt.Sprintf(`worker_id="%s"`, w.Info.ID), fmt.Sprintf("outcome=%q", x.outcome))
	}
	all, so := counts()
	before := ofWorker()
	headers := []string{"traceparent", "00-" + trace + "-b7ad6b7169203331-01"}
	if x.within > 0 {
		headers = append(headers, "x-request-timeout-ms", fmt.Sprint(x.within.Milliseconds()))
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	done := make(chan *reply, 1)
	go func() { done <- f.send(ctx, "/v1/completions", x.body, headers...) }()
	if x.leaves {
		f.await("its worker to have the request", func() bool { s, _ := f.state(w); return s.Running > 0 })
		leave()
	}
	if r := <-done; !x.leaves { // who leaves may have seen a head
		require.Equal(t, x.status, r.status, name)
	}
	f.await(name+" to be counted", func() bool { now, _ := counts(); return now > all })
	now, as := counts()
	require.Equal(t, []float64{all + 1, so + 1}, []float64{now, as}, "%s: one outcome in the metrics", name)

	d := f.attempts()
	last := d[len(d)-1]
	require.Equal(t, x.outcome, last.Outcome, "%s: in the journal", name)
	if last.Decode != nil && x.outcome != "answered" {
		require.Equal(t, before+1, ofWorker(), "%s: by its worker", name)
	}
	said := x.outcome
	if x.code != x.outcome {
		require.Equal(t, x.code, last.Detail, "%s: in the journal", name)
		said += ": " + x.code
	}
	f.await(name+" on the page", func() bool { return strings.Contains(f.adminGet("/"), fmt.Sprintf(">%s<", said)) }) // built once a second

	f.await(name+" to be in the log", func() bool { return strings.Contains(f.plugin.Log(), last.RequestID) })
	var lines []string
	for line := range strings.Lines(f.plugin.Log()) {
		if strings.Contains(line, "attempt ended") && strings.Contains(line, last.RequestID) {
			lines = append(lines, line)
		}
	}
	require.Len(t, lines, len(d), "%s: one line an attempt", name)
	require.Contains(t, lines[len(lines)-1], "outcome="+x.outcome+" ", "%s: in the log", name)

	f.fault(w, enginesim.Fault{})
	return func() { x.requireTraced(f, c, trace, name, len(d)) }
}

func (x *requestEnd) requireTraced(f *fleet, c *collector, trace, name string, attempts int) {
	t := f.t
	var spans []span
	f.await(name+" to be traced", func() bool {
		spans = nil
		for _, s := range c.of(trace) {
			if s.name == "baton.request" {
				spans = append(spans, s)
			}
		}
		return len(spans) == attempts
	})
	ends := map[string]int{}
	for _, s := range spans {
		ends[s.attributes["baton.outcome"]]++
		if s.attributes["baton.outcome"] == x.outcome && x.status >= http.StatusBadRequest {
			require.Equal(t, fmt.Sprint(x.status), s.attributes["http.response.status_code"], "%s: in the trace", name)
		}
	}
	want := map[string]int{x.outcome: 1}
	if attempts > 1 {
		want["retried"] = attempts - 1
	}
	require.Equal(t, want, ends, "%s: in the trace", name)
}

// TestWhoComesAndGoesStandsOnThePage, with when and why.
func TestWhoComesAndGoesStandsOnThePage(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{aggregated: 2})
	goes := f.workers[1]
	moved := func(to string) bool {
		var state struct {
			Transitions []struct{ What, To, Cause string }
		}
		require.NoError(t, json.Unmarshal([]byte(f.adminGet("/debug/state")), &state))
		what := "worker " + goes.Info.ID.String()
		for _, x := range state.Transitions {
			if strings.HasPrefix(x.What, what+" (") && x.To == to {
				require.Equal(t, "discovery", x.Cause)
				f.await(what+" on the page", func() bool { return strings.Contains(f.adminGet("/"), what) })
				return true
			}
		}
		return false
	}
	require.True(t, moved("joined"))
	require.False(t, moved("left"))
	f.publish(f.workers[0])
	f.await("its departure to stand there", func() bool { return moved("left") })
}
