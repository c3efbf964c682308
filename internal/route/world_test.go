package route

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestAModelWhoseWorkersAreAllAwayIsNotUnknown(t *testing.T) {
	ask := func(board *activation.Board, path openai.Path, body string) string {
		_, f := asked(t, board, path, body)
		return reasonIn(f)
	}
	workers := routetest.Workers()
	body := `{"model":"` + workers[0].Models[0] + `","prompt":"hi"}`
	require.Equal(t, "not_ready", ask(routetest.Board(time.Now()), openai.Completions, body))
	require.Equal(t, "model_not_found", ask(routetest.Board(time.Now(), nil), openai.Completions, body))
	gone := routetest.Board(time.Now(), workers, nil)
	require.Equal(t, "no_worker", ask(gone, openai.Completions, body))
	require.Equal(t, "no_worker", ask(gone, openai.Generate, `{"text":"hi"}`), "which model is clear: there was one")
	require.Equal(t, "model_not_found", ask(gone, openai.Completions, `{"model":"other","prompt":"hi"}`))
	another := routetest.Workers()
	for _, w := range another {
		w.Models = []string{"other"}
		w.ID += 10
	}
	require.Equal(t, "missing_field", ask(routetest.Board(time.Now(), workers, another), openai.Generate, `{"text":"hi"}`), "one is there, one only away: which is not clear")
}

// What a model is refused for has a reason of its own, but where only a listener is
// missing.
func TestEachOutlookHasItsReason(t *testing.T) {
	seen := map[Reason]activation.Reason{}
	for reason := activation.NoWorker; reason <= activation.NoAggregated; reason++ {
		if reason == activation.Foreign || reason == activation.NoListener {
			continue // a request of another namespace finds no model; splittable judges the listener
		}
		why := reasonOf(activation.Outlook{Reason: reason})
		require.NotEmpty(t, why, reason)
		require.NotContains(t, seen, why)
		seen[why] = reason
	}
	require.Equal(t, activation.PrefillGone, seen[PrefillGone])
	require.Equal(t, activation.NoCommon, seen[NoCommon])
	require.Empty(t, reasonOf(activation.Outlook{Reason: activation.NoListener}))
	require.Empty(t, reasonOf(activation.Outlook{Way: activation.Alone, Reason: activation.PrefillGone}))
	require.Equal(t, NoCommon, reasonOf(activation.Outlook{Way: activation.Alone, Reason: activation.NoCommon, Fallback: true}), "what one worker serves in place of")
}

// TestARequestFollowsItsModelIntoANewerWorld: all workers are replaced while it
// is being decided (docs/behaviour.md#decode-returns).
func TestARequestFollowsItsModelIntoANewerWorld(t *testing.T) {
	r := newRig(t, routetest.Workers(), nil)
	q, f := r.ask(`{"model":"m","prompt":"hi"}`, func(r *Request) { r.Admitted, r.Failed = true, []worker.Rank{{ID: 3}} })
	require.Nil(t, f)
	require.Nil(t, r.newer(q), "there is none")
	fresh := routetest.Workers()
	for _, w := range fresh {
		w.ID += 10
	}
	snap, err := worker.NewSnapshot(q.world.Revision()+1, fresh)
	require.NoError(t, err)
	r.cfg.Book.Update(snap)
	d := decider{Router: r.Router, q: q, sc: NewScratch(), v: verdict{bookings: bookings{new(load.Reservation), new(load.Reservation)}}}
	d.judge(tokens.Prompt{})
	require.NotNil(t, d.v.fail, "the old workers cannot be booked any more")
	r.cfg.Board.Follow(snap, discovery.Change{}, time.Now())
	n := r.newer(q)
	require.NotNil(t, n)
	require.True(t, n.req.Admitted)
	require.Equal(t, q.req.Failed, n.req.Failed)
	d.q, d.v = n, verdict{bookings: d.v.bookings}
	d.judge(tokens.Prompt{})
	require.Nil(t, d.v.fail)
	require.Greater(t, d.v.decode.decision.Rank.ID, worker.ID(10))
	d.v.bookings.cancel(time.Now())
	require.Zero(t, r.cfg.Book.Totals().Held)
}
