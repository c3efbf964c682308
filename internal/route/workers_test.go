package route

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	someBody      = `{"model":"m","prompt":"hello there, how are you","max_tokens":4}`
	eightTokens   = `{"model":"m","prompt":[1,2,3,4,5,6,7,8]}`
	sixteenTokens = `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}`
	extTokens     = `{"model":"m","prompt":[1,2,3,4,5,6,7,8],"nvext":{%}}`
)

func withExt(ext string) string { return strings.Replace(extTokens, "%", ext, 1) }

func setOf(list string) *subset.Set { return subset.Parse(structpb.NewStringValue(list)) }

func boardOf(t *testing.T, sets ...[]*worker.Worker) *activation.Board {
	t.Helper()
	b := activation.New()
	for i, ws := range sets {
		snap, err := worker.NewSnapshot(uint64(i+1), ws)
		require.NoError(t, err)
		b.Follow(snap, discovery.Change{}, time.Now())
	}
	return b
}

// testWorkers are two for prefill, 1 and 2, and two for decode.
func testWorkers(t *testing.T) []*worker.Worker {
	var ws []*worker.Worker
	for i, role := range []worker.Role{worker.Prefill, worker.Prefill, worker.Decode, worker.Decode} {
		e, err := worker.ParseEndpoint(fmt.Sprintf("127.0.0.1:%d", 40000+i))
		require.NoError(t, err)
		ws = append(ws, &worker.Worker{
			ID: worker.ID(i + 1), Role: role, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"}, DPSize: 1, BlockSize: 4,
			Bootstrap: worker.Bootstrap{Host: "127.0.0.1", Port: 8998},
		})
	}
	ws[0].KVEvents = worker.KVEvents{Host: "127.0.0.1", Port: 5557} // so that the index is asked
	return ws
}

// portedWorkers are testWorkers with three ranks each, of which each has a port
// of its own: 40100 to 40102, 40200 to 40202 …
func portedWorkers(t *testing.T) []*worker.Worker {
	ws := testWorkers(t)
	for _, w := range ws {
		var err error
		w.Endpoint, err = worker.ParseEndpoint(fmt.Sprintf("127.0.0.1:%d", 40000+100*w.ID))
		require.NoError(t, err)
		w.DPSize, w.PortPerRank = 3, true
	}
	return ws
}

// manyWorkers are n for prefill, ids from 1, and then n for decode.
func manyWorkers(t *testing.T, n int) (ws []*worker.Worker) {
	for i := range 2 * n {
		e, err := worker.ParseEndpoint(fmt.Sprintf("10.0.%d.%d:8000", i>>8, i&255))
		require.NoError(t, err)
		w := &worker.Worker{ID: worker.ID(i + 1), Role: worker.Prefill, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"}, DPSize: 1, BlockSize: 4}
		w.Bootstrap = worker.Bootstrap{Host: "10.0.0.1", Port: 8998}
		if i >= n {
			w.Role, w.Bootstrap = worker.Decode, worker.Bootstrap{}
		}
		ws = append(ws, w)
	}
	return ws
}

// zoned puts worker 1 and 3 into zone a, 2 and 4 into zone b, and binds the KV of
// the prefill workers to them.
func zoned(t *testing.T, e worker.Enforcement, weight float64) []*worker.Worker {
	ws := testWorkers(t)
	for i, w := range ws {
		w.TopologyDomains = map[string]string{"zone": string("ab"[i%2])}
		if w.Role == worker.Prefill {
			w.KVTransfer = worker.KVTransfer{Domain: "zone", Enforcement: e, Weight: weight}
		}
	}
	return ws
}

// stranded puts prefill into a domain in which nobody decodes.
func stranded(ws []*worker.Worker) {
	for _, w := range ws {
		if w.Role == worker.Prefill {
			w.TopologyDomains = map[string]string{"zone": "x"}
			w.KVTransfer = worker.KVTransfer{Domain: "zone", Enforcement: worker.Required}
		}
	}
}

// ableAlone lets worker 3, a decode worker, do without a prefill.
func ableAlone(t *testing.T) []*worker.Worker {
	ws := testWorkers(t)
	ws[2].AcceptsAggregated = true
	ws[2].KVEvents = worker.KVEvents{Host: "127.0.0.1", Port: 5558} // so that the index is asked
	return ws
}

func aggregated(ws []*worker.Worker) []*worker.Worker {
	for _, w := range ws {
		w.Role = worker.Aggregated
	}
	return ws
}

// engineOf makes workers of one engine; those of a hand-off through prefill's answer
// have no bootstrap.
func engineOf(ws []*worker.Worker, e worker.Engine) []*worker.Worker {
	for _, w := range ws {
		w.Engine = e
		if handoff.KindOf(e).PrefillFirst() {
			w.Bootstrap = worker.Bootstrap{}
		}
	}
	return ws
}
