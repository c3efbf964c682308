package extproc

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// What clients invent never reaches the load book, which would look through the
// fleet under its lock for each: it is asked for what some worker carries, and for
// one name that stands for all else.
func TestTheBookIsNotAskedForTaintsThatNoWorkerCarries(t *testing.T) {
	ws := zoned(t, worker.Preferred, 0.5)
	ws[0].Taints = []string{"gpu=h"}
	r := newReplicaOf(t, "a", fixed(ws), func(c *Config) { c.Overrides = true })
	asked := map[string]bool{}
	for i := range 50 {
		body := []byte(withExt(fmt.Sprintf(`"routing_constraints":{"required_taints":["gpu=h","r%d","dynamo.topology/zone=a","dynamo.topology/zone=z%d"],`+
			`"preferred_taints":{"p%d":1,"gpu=h":2,"dynamo.topology/zone=b":3}}`, i, i, i)))
		var req openai.Request
		require.NoError(t, openai.Scan(openai.Completions, body, &req))
		q, f := r.srv.question(&req, body)
		require.Nil(t, f)
		require.Equal(t, fmt.Sprintf("r%d", i), q.missing)
		require.Equal(t, []picker.Preference{{Taint: "dynamo.topology/zone=b", Weight: 3}, {Taint: "gpu=h", Weight: 2}}, q.constraints.Preferred)
		for _, taint := range q.constraints.Required {
			asked[taint] = true
		}
		status, answer := r.ask(string(body))
		require.Equal(t, 503, status)
		require.Contains(t, answer, fmt.Sprintf(`"required_taint":"r%d"`, i), "the client reads its own name")
		rec := r.srv.cfg.Journal.Recent(nil, 1)[0]
		require.Equal(t, "lacks the taint gpu=h", rec.Prefill.Rows()[1].Note)
		require.Equal(t, fmt.Sprintf("lacks the taint r%d", i), rec.Prefill.Rows()[0].Note)
	}
	require.Equal(t, map[string]bool{"gpu=h": true, "dynamo.topology/zone=a": true, noTaint: true}, asked)
	r.requireIdle()
}

func TestTheTaintsOfANewWorldAreLookedUpAnew(t *testing.T) {
	var sets taintSets
	first := newReplicaOf(t, "a", fixed(zoned(t, worker.Preferred, 0)), nil).srv.cfg.Board.Load()
	ws := testWorkers(t)
	ws[3].Taints = []string{"late"}
	second := newReplicaOf(t, "b", fixed(ws), nil).srv.cfg.Board.Load()
	require.NotContains(t, sets.of(first), "late")
	require.Contains(t, sets.of(first), "dynamo.topology/zone=b")
	require.Equal(t, map[string]struct{}{"late": {}}, sets.of(second))
}
