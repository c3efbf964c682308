package route

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// What clients invent never reaches the load book, which would look through the
// fleet under its lock for each: it is asked for what some worker carries, and for
// one name that stands for all else.
func TestTheBookIsNotAskedForTaintsThatNoWorkerCarries(t *testing.T) {
	ws := routetest.Zoned(worker.Preferred, 0.5)
	ws[0].Taints = []string{"gpu=h"}
	r := newRig(t, ws, func(c *Config) { c.Overrides = true })
	taken := map[string]bool{}
	for i := range 50 {
		body := withExt(fmt.Sprintf(`"routing_constraints":{"required_taints":["gpu=h","r%d","dynamo.topology/zone=a","dynamo.topology/zone=z%d"],`+
			`"preferred_taints":{"p%d":1,"gpu=h":2,"dynamo.topology/zone=b":3}}`, i, i, i))
		q := r.asking(body)
		require.Equal(t, fmt.Sprintf("r%d", i), q.missing)
		require.Equal(t, []picker.Preference{{Taint: "dynamo.topology/zone=b", Weight: 3}, {Taint: "gpu=h", Weight: 2}}, q.constraints.Preferred)
		for _, taint := range q.constraints.Required {
			taken[taint] = true
		}
		rec, f := r.decided(body)
		require.Equal(t, &Refusal{Reason: NoTaint, Role: worker.Prefill, Taint: fmt.Sprintf("r%d", i)}, f, "the client reads its own name")
		require.Equal(t, "lacks the taint gpu=h", rec.Prefill.Rows()[1].Note)
		require.Equal(t, fmt.Sprintf("lacks the taint r%d", i), rec.Prefill.Rows()[0].Note)
	}
	require.Equal(t, map[string]bool{"gpu=h": true, "dynamo.topology/zone=a": true, noTaint: true}, taken)
}

func TestTheTaintsOfANewWorldAreLookedUpAnew(t *testing.T) {
	var sets taintSets
	first := routetest.Board(time.Now(), routetest.Zoned(worker.Preferred, 0.5)).Load()
	ws := routetest.Workers()
	ws[3].Taints = []string{"late"}
	second := routetest.Board(time.Now(), ws).Load()
	require.NotContains(t, sets.get(first, taintsOf), "late")
	require.Contains(t, sets.get(first, taintsOf), "dynamo.topology/zone=b")
	require.Equal(t, map[string]struct{}{"late": {}}, sets.get(second, taintsOf))
}
