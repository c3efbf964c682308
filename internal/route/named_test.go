package route

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// What is known of a named worker's ranks stays with them, wherever in its pool they
// stand.
func TestANamedWorkerKeepsWhatIsKnownOfItsRanks(t *testing.T) {
	ranks := []worker.Rank{{ID: 1}, {ID: 5}, {ID: 5, DPRank: 1}, {ID: 5, DPRank: 2}, {ID: 9}}
	column := func(from uint32) []uint32 { return []uint32{from, from + 1, from + 2, from + 3, from + 4} }
	for name, row := range map[string]struct {
		at        pin.Place
		want      []worker.Rank
		from      uint32 // where they stand
		estimated []int
	}{
		"the first":        {pin.Place{Worker: &worker.Worker{ID: 1, DPSize: 1}}, ranks[:1], 0, nil},
		"the last":         {pin.Place{Worker: &worker.Worker{ID: 9, DPSize: 1}}, ranks[4:], 4, nil},
		"one of its ranks": {pin.Place{Worker: &worker.Worker{ID: 5, DPSize: 3}, DPRank: 1}, ranks[2:3], 2, []int{0}},
		"any of its ranks": {pin.Place{Worker: &worker.Worker{ID: 5, DPSize: 3}, AnyRank: true}, ranks[1:4], 1, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			guessed := picker.NewBits(5)
			guessed.Set(2)
			r := load.Request{
				Ranks: ranks, Cached: picker.Cached{Overlap: column(10), Predicted: column(20), Host: column(30), Disk: column(40), Estimated: guessed},
				Exclude: row.want[:1], MaxQueuedISLTokens: 7,
			}
			p := picker.Params{Mode: picker.RoundRobin}
			narrow(&r, &row.at, &p)
			require.Equal(t, row.want, r.Ranks)
			for i := range row.want {
				at := row.from + uint32(i)
				require.Equal(t, []uint32{10 + at, 20 + at, 30 + at, 40 + at}, []uint32{r.Overlap[i], r.Predicted[i], r.Host[i], r.Disk[i]})
			}
			require.Len(t, r.Disk, len(row.want))
			var estimated []int
			for i := range 5 {
				if r.Estimated.Has(i) {
					estimated = append(estimated, i)
				}
			}
			require.Equal(t, row.estimated, estimated)
			require.Nil(t, r.Exclude, "what has failed the request before is no reason either")
			require.Zero(t, r.MaxQueuedISLTokens)
			require.Equal(t, health.Free, r.Filter.Standing(row.want[0]))
			require.True(t, p.ServeOverloaded)
			require.Equal(t, picker.KV, p.Mode, "no turn moves")
		})
	}
}
