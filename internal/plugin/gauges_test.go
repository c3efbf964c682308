package plugin

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestWhatAnAutoscalerReads: the queue in seconds and the free blocks, of ranks in service alone.
func TestWhatAnAutoscalerReads(t *testing.T) {
	r := startPlugin(t, "")
	r.writeWorkers("workers:\n" +
		"- {id: 1, role: prefill, engine: vllm, models: [m], endpoint: \"127.0.0.1:1\", block_size: 16, capacity_blocks: 100}\n" +
		"- {id: 2, role: prefill, engine: vllm, models: [m], endpoint: \"127.0.0.1:2\", block_size: 16}\n" +
		"- {id: 3, role: decode, engine: vllm, models: [m, also], endpoint: \"127.0.0.1:3\", block_size: 16, capacity_blocks: 100, accepts_aggregated: true}\n" +
		"- {id: 4, role: decode, engine: vllm, models: [m], endpoint: \"127.0.0.1:4\", block_size: 16}\n")
	require.Eventually(t, func() bool { return len(r.plugin.board.Load().Workers()) == 4 }, 20*time.Second, 5*time.Millisecond)
	params := picker.DefaultParams()
	book := func(role worker.Role, id worker.ID, tokens int) {
		q := &load.Request{Key: worker.Key{Model: "m"}, Params: &params, Now: time.Now(), Pick: picker.Request{Role: role, ISLTokens: tokens, NewBlocks: tokens / 16}}
		require.NoError(t, r.plugin.book.Reserve(q, worker.Rank{ID: id}, 0, new(load.Reservation)))
	}
	book(worker.Prefill, 1, 1<<20)
	book(worker.Decode, 3, 16*30)
	pools := func() map[string]telemetry.PoolLoad {
		var o telemetry.Observation
		r.plugin.observe(&o)
		out := map[string]telemetry.PoolLoad{}
		for _, x := range o.Pools {
			out[x.Model+" "+x.Role.String()] = x
		}
		return out
	}
	got := pools()
	require.Len(t, got, 3, "a decode worker that serves alone, too, is decode's")
	wait := r.plugin.book.Wait(worker.Rank{ID: 1}, time.Now())
	require.Greater(t, wait, 1.0)
	require.InEpsilon(t, wait/2, got["m prefill"].Backlog, 0.1, "the mean")
	require.Zero(t, got["m prefill"].LeastBacklog)
	require.Zero(t, got["m prefill"].Capacity, "prefill runs no answers")
	require.Equal(t, []int64{100, 70}, []int64{got["m decode"].Capacity, got["m decode"].FreeBlocks}, "of the one whose capacity is known")
	require.Equal(t, got["m decode"].FreeBlocks, got["also decode"].FreeBlocks)

	for range 9 {
		r.plugin.health.Report(worker.Rank{ID: 2}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	}
	require.False(t, r.plugin.health.Allows(worker.Rank{ID: 2}))
	require.InEpsilon(t, wait, pools()["m prefill"].LeastBacklog, 0.2, "of those in service")

	metrics := r.get("/metrics")
	require.Contains(t, metrics, `baton_worker_info{endpoint="127.0.0.1:3",host="127.0.0.1",model="also",role="decode",worker_id="3"} 1`)
	require.Equal(t, 5, strings.Count(metrics, "baton_worker_info{"))
	require.Contains(t, metrics, "baton_kv_events_silent_workers 0\n")
}
