package plugin

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestWhoCameAndWentIsToldForAnHour, by role, and the first view is no change.
func TestWhoCameAndWentIsToldForAnHour(t *testing.T) {
	snap := func(ids ...worker.ID) *worker.Snapshot {
		var ws []*worker.Worker
		for _, id := range ids {
			at, err := worker.ParseEndpoint(fmt.Sprintf("10.0.0.%d:8000", id))
			require.NoError(t, err)
			w := &worker.Worker{ID: id, Role: worker.Decode, Engine: worker.SGLang, Endpoint: at, Models: []string{"m"}, DPSize: 1, BlockSize: 16}
			if id < 10 {
				w.Role, w.Bootstrap = worker.Prefill, worker.Bootstrap{Host: "10.0.0.1", Port: 8998}
			}
			ws = append(ws, w)
		}
		s, err := worker.NewSnapshot(1, ws)
		require.NoError(t, err)
		return s
	}
	h, now := &history{}, time.Unix(1000, 0)
	said := func(at time.Time) (out []string) {
		for _, l := range h.recently(at) {
			out = append(out, l.Text)
		}
		return out
	}
	h.counted(snap(), snap(1, 2, 11), discovery.Change{Joined: []worker.ID{1, 2, 11}}, now)
	require.Empty(t, said(now))
	h.counted(snap(1, 2, 11), snap(2, 11), discovery.Change{Left: []worker.ID{1}}, now)
	h.counted(snap(2, 11), snap(2, 11, 12, 13), discovery.Change{Joined: []worker.ID{12, 13}}, now.Add(time.Minute))
	require.Equal(t, []string{"2 of 3 decode workers joined", "1 of 2 prefill workers left"}, said(now.Add(time.Hour)))
	require.Equal(t, []string{"2 of 3 decode workers joined"}, said(now.Add(time.Hour+time.Second)))
	for range 100 {
		h.counted(snap(1, 2), snap(2), discovery.Change{Left: []worker.ID{1}}, now)
	}
	require.Len(t, said(now), latelySize)
}
