package extproc

import (
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// What tests of the server need of machines.

var testStart = time.UnixMilli(1_800_000_000_000)

func testRules() *rules {
	names, _ := prefill.NamesOf(prefill.DialectPlain)
	return &rules{
		prefillTimeout: time.Minute, orphanGrace: 30 * time.Second,
		hold: true, holdFirst: true, prefillCluster: "prefill_leg", maxAttempts: 3, maxBodyBytes: 1 << 20, passOther: true,
		defaultTimeout: 10 * time.Minute, maxTimeout: time.Hour, names: names, buffers: new(wire.Pool), scans: new(scanPool),
	}
}

// mainOf is a main leg that nothing has come of.
func mainOf(r *rules, w way) *mainLeg {
	m := newMainLeg(r, w)
	return &m
}

// withBody is a main leg whose request's body has come.
func withBody(r *rules, body []byte) *mainLeg {
	m := mainOf(r, way{})
	m.step(testStart, &event{kind: evRequestHeaders, headers: &wire.Headers{Method: "POST", Path: "/v1/completions"}})
	m.step(testStart, &event{kind: evRequestBody, body: body, endOfStream: true})
	return m
}

// routedBy is a main leg for which the plan was made.
func routedBy(p *plan) *mainLeg {
	m := withBody(testRules(), []byte(`{"model":"m","prompt":"hello"}`))
	m.step(testStart, &event{kind: evPicked, plan: p})
	return m
}

func learnedBy(m *mainLeg) lesson {
	l, _ := m.learned()
	return l
}

// reportsOf are what the effects say of a prefill leg.
func reportsOf(effects []effect) (out []legReport) {
	for i := range effects {
		out = append(out, effects[i].report)
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
