package load

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func testWorker(t testing.TB, id worker.ID, role worker.Role, dp uint32, port int) *worker.Worker {
	e, err := worker.ParseEndpoint(fmt.Sprintf("10.%d.%d.%d:%d", id>>16&255, id>>8&255, id&255, port))
	require.NoError(t, err)
	return &worker.Worker{
		ID: id, Role: role, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"}, DPSize: dp, BlockSize: 16,
		Bootstrap: worker.Bootstrap{Host: "10.0.0.1", Port: 8998},
	}
}

func snapshot(t testing.TB, ws ...*worker.Worker) *worker.Snapshot {
	s, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	return s
}

// fleet is a snapshot of n prefill workers with dp ranks each. Their ids begin at 1.
func fleet(t testing.TB, n int, dp uint32) *worker.Snapshot {
	ws := make([]*worker.Worker, n)
	for i := range ws {
		ws[i] = testWorker(t, worker.ID(i+1), worker.Prefill, dp, 8000)
	}
	return snapshot(t, ws...)
}

var key = worker.Key{Model: "m"}

// later is when bookings end in tests in which time does not matter.
var later = time.Unix(100, 0)

func prefillRequest(s *worker.Snapshot, isl int, p *picker.Params) *Request {
	return &Request{
		Key: key, Ranks: s.Pool(key).PrefillRanks, Params: p,
		Pick: picker.Request{Role: worker.Prefill, ISLTokens: isl, RequestBlocks: isl / 16},
	}
}

func params() *picker.Params {
	p := picker.DefaultParams()
	return &p
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }
