// Package routetest makes workers, and the board that publishes them, for tests of
// internal/route.
//
// Contract. Each call makes workers of its own, which a test may change. A call that
// cannot be met panics.
//
// What it does not do: it does not import internal/route, whose tests use it.
package routetest

import (
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Workers returns two prefill workers, 1 and 2, and two decode workers, 3 and 4, at
// 127.0.0.1:40000 and the ports after it.
func Workers() []*worker.Worker {
	var ws []*worker.Worker
	for i, role := range []worker.Role{worker.Prefill, worker.Prefill, worker.Decode, worker.Decode} {
		ws = append(ws, &worker.Worker{
			ID: worker.ID(i + 1), Role: role, Engine: worker.SGLang, Endpoint: endpoint("127.0.0.1:%d", 40000+i), Models: []string{"m"}, DPSize: 1, BlockSize: 4,
			Bootstrap: worker.Bootstrap{Host: "127.0.0.1", Port: 8998},
		})
	}
	ws[0].KVEvents = worker.KVEvents{Host: "127.0.0.1", Port: 5557} // so that the index is asked
	return ws
}

// Ported returns Workers with three ranks each. Each rank has a port of its own: 40100 to
// 40102, 40200 to 40202 …
func Ported() []*worker.Worker {
	ws := Workers()
	for _, w := range ws {
		w.Endpoint = endpoint("127.0.0.1:%d", 40000+100*w.ID)
		w.DPSize, w.PortPerRank = 3, true
	}
	return ws
}

// Many returns n prefill workers, with ids from 1, and after them n decode workers.
func Many(n int) (ws []*worker.Worker) {
	for i := range 2 * n {
		w := &worker.Worker{
			ID: worker.ID(i + 1), Role: worker.Prefill, Engine: worker.SGLang, Endpoint: endpoint("10.0.%d.%d:8000", i>>8, i&255), Models: []string{"m"}, DPSize: 1, BlockSize: 4,
			Bootstrap: worker.Bootstrap{Host: "10.0.0.1", Port: 8998},
		}
		if i >= n {
			w.Role, w.Bootstrap = worker.Decode, worker.Bootstrap{}
		}
		ws = append(ws, w)
	}
	return ws
}

// Zoned returns Workers with 1 and 3 in zone a, 2 and 4 in zone b. The KV of the prefill
// workers is bound to their zone.
func Zoned(e worker.Enforcement, weight float64) []*worker.Worker {
	ws := Workers()
	for i, w := range ws {
		w.TopologyDomains = map[string]string{"zone": string("ab"[i%2])}
		if w.Role == worker.Prefill {
			w.KVTransfer = worker.KVTransfer{Domain: "zone", Enforcement: e, Weight: weight}
		}
	}
	return ws
}

// AbleAlone returns Workers of which 3, a decode worker, can serve without a prefill.
func AbleAlone() []*worker.Worker {
	ws := Workers()
	ws[2].AcceptsAggregated = true
	ws[2].KVEvents = worker.KVEvents{Host: "127.0.0.1", Port: 5558} // so that the index is asked
	return ws
}

// Strand puts the prefill workers into a domain that has no decode worker.
func Strand(ws []*worker.Worker) {
	for _, w := range ws {
		if w.Role == worker.Prefill {
			w.TopologyDomains = map[string]string{"zone": "x"}
			w.KVTransfer = worker.KVTransfer{Domain: "zone", Enforcement: worker.Required}
		}
	}
}

// Aggregated makes each of ws serve a request alone, and returns them.
func Aggregated(ws []*worker.Worker) []*worker.Worker {
	for _, w := range ws {
		w.Role = worker.Aggregated
	}
	return ws
}

// Board returns a board to which the sets of workers were published in turn, at the time
// now.
func Board(now time.Time, sets ...[]*worker.Worker) *activation.Board {
	b := activation.New()
	for i, ws := range sets {
		snap, err := worker.NewSnapshot(uint64(i+1), ws)
		if err != nil {
			panic(err)
		}
		b.Follow(snap, discovery.Change{}, now)
	}
	return b
}

func endpoint(format string, args ...any) worker.Endpoint {
	e, err := worker.ParseEndpoint(fmt.Sprintf(format, args...))
	if err != nil {
		panic(err)
	}
	return e
}
