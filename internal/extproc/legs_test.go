package extproc

import (
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// What tests of the server need of machines.

var testStart = time.UnixMilli(1_800_000_000_000)

func testRules() *leg.Rules {
	names, _ := prefill.NamesOf(prefill.DialectPlain)
	return &leg.Rules{
		PrefillTimeout: time.Minute, OrphanGrace: 30 * time.Second,
		Hold: true, HoldFirst: true, MaxAttempts: 3, MaxBodyBytes: 1 << 20, PassOther: true,
		DefaultTimeout: 10 * time.Minute, MaxTimeout: time.Hour, Names: names, Buffers: new(wire.Pool), Scans: new(openai.Pool),
	}
}

// mainOf returns a main leg before its first event.
func mainOf(r *leg.Rules, w leg.Way) *leg.Main {
	m := leg.NewMain(r, w)
	return &m
}

// withBody returns a main leg whose request has come with the body.
func withBody(r *leg.Rules, body []byte) *leg.Main {
	m := mainOf(r, leg.Way{})
	m.Step(testStart, &leg.Event{Kind: leg.EventRequestHeaders, Headers: &wire.Headers{Method: "POST", Path: "/v1/completions"}})
	m.Step(testStart, &leg.Event{Kind: leg.EventRequestBody, Body: body, EndOfStream: true})
	return m
}

// routedBy returns a main leg that has the plan.
func routedBy(p *leg.Plan) *leg.Main {
	m := withBody(testRules(), []byte(`{"model":"m","prompt":"hello"}`))
	m.Step(testStart, &leg.Event{Kind: leg.EventPicked, Plan: p})
	return m
}

func learnedBy(m *leg.Main) leg.Lesson {
	l, _ := m.Learned()
	return l
}

// reportsOf returns the reports on a prefill leg that are among the effects.
func reportsOf(effects []leg.Effect) (out []leg.Report) {
	for i := range effects {
		out = append(out, effects[i].Report)
	}
	return out
}

func str(d *datadriven.TestData, key, def string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return a.Vals[0]
		}
	}
	return def
}

func num(t *testing.T, d *datadriven.TestData, key string, def int) int {
	s := str(d, key, strconv.Itoa(def))
	n, err := strconv.Atoi(s)
	require.NoError(t, err, d.Pos)
	return n
}
