package plugin

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/hour"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestTheHourHasRequestsAndLoads(t *testing.T) {
	x := newTold(t)
	x.set(discovery.Change{Joined: []worker.ID{1, 2, 3}}, testWorker(t, 1, worker.Prefill, "1001"), testWorker(t, 2, worker.Prefill, "1002"), testWorker(t, 3, worker.Decode, "1003"))
	samples := loadSamples(x.plugin, time.Now())
	require.Equal(t, []hour.Sample{{Role: worker.Prefill, Ranks: 2}, {Role: worker.Decode, Ranks: 1}}, samples, "nothing is booked; nobody is aggregated")

	tele := x.tele.Instruments
	tele.RequestEnded("failed", "decode_failed")
	tele.RequestEnded("ok", "")
	tele.Took(&telemetry.Served{Model: "m", FirstToken: time.Second, PerToken: 20 * time.Millisecond, Whole: 2 * time.Second})
	tele.Prompt(&telemetry.PromptTokens{Model: "m", Prompt: 100, Available: 60, Predicted: 50})
	tele.Prompt(&telemetry.PromptTokens{Model: "m", Prompt: 100, Available: 60, Predicted: 50, Told: true, Delivered: 40})
	x.hour.Sample(time.Now(), samples...)
	spans := x.adminConfig().Hour(time.Now().Add(hour.Step), 1)
	got := spans[len(spans)-1]
	if got.Requests == spans[0].Requests { // the step has ended meanwhile
		got = spans[len(spans)-2]
	}
	for _, outcome := range []string{"failed", "ok"} {
		require.Equal(t, int64(1), got.Requests[slices.Index(hour.Outcomes(), outcome)], outcome)
	}
	require.Equal(t, int64(1), got.FirstToken.Count)
	require.InEpsilon(t, 0.02, got.PerToken.P50.Seconds(), 0.05)
	require.Equal(t, hour.Prompt{Asked: 200, Available: 120, Predicted: 100, Told: 100, Delivered: 40}, got.Prompt)
	require.True(t, got.Load[worker.Prefill].Known)
	require.False(t, got.Load[worker.Aggregated].Known)
}

// What the request's end is called is what the hour has a place for.
func TestTheHourKnowsEveryOutcome(t *testing.T) {
	for _, o := range []string{
		string(blame.OK), string(blame.OfWorker), string(blame.Failed), string(blame.Cut), string(blame.Left), string(blame.Unknown),
		string(decision.Refused), string(decision.Answered),
	} {
		require.Contains(t, hour.Outcomes(), o)
	}
}
