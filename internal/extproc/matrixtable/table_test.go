package matrixtable

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const file = "../testdata/matrix"

func TestEachCellIsReadAsItIsWritten(t *testing.T) {
	cells, err := Read(file)
	require.NoError(t, err)
	require.Len(t, cells, 192)
	byName := map[string]Cell{}
	for _, c := range cells {
		byName[c.Name] = c
	}
	for name, want := range map[string]Cell{
		"absent | normal | free, accepts":                           {State: "absent", column: column{Accepts: true}, Want: Outcome{Decode: 3}},
		"ready | pre-routed, prefill 2 | free, needs":               {State: "ready", Mode: Mode{Routing: "prerouted", Prefill: 2}, Want: Outcome{Prefill: 2, Decode: 3}},
		"deactivated | query-only | enforced, accepts":              {State: "deactivated", Mode: Mode{Routing: "prerouted", Query: true}, column: column{true, true}, Want: Outcome{Status: 503, Code: "disaggregation_enforced"}},
		"all ineligible: draining | direct, decode 4 | free, needs": {State: "all ineligible: draining", Mode: Mode{Routing: "direct", Decode: 4}, Want: Outcome{Status: 400, Code: "worker_not_named"}},
	} {
		want.Name = name
		require.Equal(t, want, byName[name])
	}
}

func TestATableThatIsNotWholeIsRefused(t *testing.T) {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for what, c := range map[string]struct{ old, with, says string }{
		"a cell that is missing":     {"normal                              | 3                        |", "normal |", "3 cells in"},
		"a row that is missing":      {"direct, decode 4                    | 4", "# | 4", `mode "#" is not known`},
		"a row that is there twice":  {"direct, decode 4                    | 4", "normal | 4", "is there 2 times"},
		"a state that is not known":  {"saturated:", "sated:", `state "sated: the queue is full"`},
		"a state that is missing":    {"\nsaturated:", "\n#", "saturated | query-only | free, needs is there 0 times"},
		"a column that is not known": {"free, accepts", "free", `column "free" is not known`},
		"a cell that says nothing":   {"| 429 prefill_saturated", "| 429", `cell "429": `},
		"a cell that says more":      {"2 > 3 ", "2 > 3 x ", `cell "2 > 3 x"`},
	} {
		broken := strings.Replace(string(text), c.old, c.with, 1)
		require.NotEqual(t, string(text), broken, what)
		_, err := parse(broken)
		require.ErrorContains(t, err, c.says, what)
	}
}
