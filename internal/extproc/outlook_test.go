package extproc

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Rows C1, C2, B5 and C24, as a table: the state of the key, whether
// disaggregation is enforced, and who may be picked.
func TestWhatARequestIsServedWithFollowsFromTheStateOfItsKey(t *testing.T) {
	const all = "PDA"
	for _, row := range []struct {
		state    prefill.State
		pool     string // who may be picked: prefill, decode, aggregated
		enforced bool
		want     string
	}{
		{prefill.Absent, "A", false, "aggregated"},
		{prefill.Absent, "", false, "no_aggregated_worker"},
		{prefill.Absent, "A", true, "disaggregation_enforced"},
		{prefill.DecodeWaiting, "DA", false, "aggregated"},
		{prefill.DecodeWaiting, "D", false, "no_aggregated_worker"},
		{prefill.DecodeWaiting, "DA", true, "disaggregation_enforced"},
		{prefill.PrefillPending, "DA", false, "prefill_not_ready"},
		{prefill.PrefillPending, "DA", true, "prefill_not_ready"},
		{prefill.PrefillReady, all, false, "disaggregated"},
		{prefill.PrefillReady, all, true, "disaggregated"},
		{prefill.PrefillReady, "DA", false, "no_prefill_worker"}, // draining: C24
		{prefill.PrefillReady, "DA", true, "no_prefill_worker"},
		{prefill.PrefillReady, "PA", false, "no_decode_worker"}, // never a silent fall (B3)
		{prefill.PrefillReady, "P", true, "no_decode_worker"},
		{prefill.Deactivated, "DA", false, "aggregated"},
		{prefill.Deactivated, "D", false, "no_aggregated_worker"},
		{prefill.Deactivated, "DA", true, "disaggregation_enforced"},
	} {
		pool := &worker.Pool{}
		for _, c := range row.pool {
			ranks := map[rune]*[]worker.Rank{'P': &pool.PrefillRanks, 'D': &pool.DecodeRanks, 'A': &pool.AggregatedRanks}[c]
			*ranks = []worker.Rank{{ID: 1}}
		}
		got := "aggregated"
		disagg, f := outlook(row.state, row.enforced, pool)
		if f != nil {
			require.Equal(t, 503, f.status)
			require.Positive(t, f.retryAfter)
			got = f.code
		} else if disagg {
			got = "disaggregated"
		}
		require.Equal(t, row.want, got, "%s, pool %q, enforced %t", row.state, row.pool, row.enforced)
	}
}

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

func TestAModelWhoseWorkersAreAllAwayIsNotUnknown(t *testing.T) {
	ask := func(board *activation.Board, path openai.Path, body string) string {
		srv := &Server{cfg: Config{Board: board}}
		var r openai.Request
		require.NoError(t, openai.Scan(path, []byte(body), &r))
		_, f := srv.question(&r, []byte(body))
		require.NotNil(t, f)
		return f.code
	}
	workers := testWorkers(t)
	body := `{"model":"` + workers[0].Models[0] + `","prompt":"hi"}`
	require.Equal(t, "not_ready", ask(boardOf(t), openai.Completions, body))
	require.Equal(t, "model_not_found", ask(boardOf(t, nil), openai.Completions, body))
	gone := boardOf(t, workers, nil)
	require.Equal(t, "no_worker", ask(gone, openai.Completions, body))
	require.Equal(t, "no_worker", ask(gone, openai.Generate, `{"text":"hi"}`), "which model is clear: there was one")
	require.Equal(t, "model_not_found", ask(gone, openai.Completions, `{"model":"other","prompt":"hi"}`))
}

// Row B9: a model that enforced disaggregation cannot serve is not offered.
func TestModelsAreOfferedWhenTheyCanBeServed(t *testing.T) {
	offered := func(enforced bool, workers []*worker.Worker) int {
		srv := &Server{cfg: Config{Board: boardOf(t, workers), EnforceDisagg: enforced}}
		im := srv.models()
		require.Equal(t, 200, im.status)
		var list struct{ Data []struct{ ID string } }
		require.NoError(t, json.Unmarshal(im.body, &list))
		return len(list.Data)
	}
	all := testWorkers(t)
	require.Equal(t, 1, offered(true, all))
	require.Equal(t, 0, offered(true, all[2:]), "decode alone")
	require.Equal(t, 0, offered(true, testWorkers(t)[:2]), "prefill alone: no side is active")
	require.Equal(t, 1, offered(false, testWorkers(t)[2:]))
}
