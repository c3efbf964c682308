package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/sides"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestPairsThatCountOtherwiseAreNamedOnThePage(t *testing.T) {
	snap, err := worker.NewSnapshot(1, []*worker.Worker{testWorker(t, 1, worker.Prefill, "1001"), testWorker(t, 2, worker.Decode, "1002")})
	require.NoError(t, err)
	require.Empty(t, differences(snap, nil))
	ds := []sides.Difference{
		{Prefill: 1, Decode: 2, Counts: sides.Counts{Ours: 9, Prefill: 9, Decode: 10}, Alone: 2},
		{Prefill: 1, Decode: 3, Counts: sides.Counts{Prefill: 9, Decode: 8}},
	}
	out := differences(snap, ds)
	require.Len(t, out, 2)
	require.Equal(t, "PAIR", out[0].Tag())
	require.Contains(t, out[0].What, "worker 1 (prefill 127.0.0.1:1001) has counted 9 tokens and worker 2 (decode 127.0.0.1:1002) 10 (Baton: 9), and no other worker counts as 2")
	require.Contains(t, out[1].Text(), "and worker 3 8. They are no pair")
	for range mostDifferences {
		ds = append(ds, ds[1])
	}
	out = differences(snap, ds)
	require.Len(t, out, mostDifferences+1)
	require.Equal(t, "2 more pairs like these", out[mostDifferences].What)
}
