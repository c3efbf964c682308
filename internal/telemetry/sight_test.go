package telemetry

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestWhoJudgesNothingShowsNoTroubles: 0 would say that all is well.
func TestWhoJudgesNothingShowsNoTroubles(t *testing.T) {
	tel := newTelemetry(t, Config{})
	var troubles map[string]int64
	_, err := tel.Instruments.Observe(func(o *Observation) { o.Troubles = troubles })
	require.NoError(t, err)
	require.NotContains(t, gather(t, tel), MetricTrouble)
	troubles = map[string]int64{}
	require.Len(t, gather(t, tel)[MetricTrouble].GetMetric(), len(TroubleKinds()))
	seen := map[string]bool{}
	for _, kind := range TroubleKinds() {
		require.False(t, seen[kind], kind)
		seen[kind] = true
	}
}

// TestInfosAreBounded: discovery says how many models and workers there are.
func TestInfosAreBounded(t *testing.T) {
	tel := newTelemetry(t, Config{})
	many := make([]string, infoModels+5)
	for i := range many {
		many[i] = "m" + strconv.Itoa(i)
	}
	var infos []WorkerInfo
	_, err := tel.Instruments.Observe(func(o *Observation) { o.Infos = append(o.Infos, infos...) })
	require.NoError(t, err)
	left := func() float64 { return gather(t, tel)[MetricLeftOut].GetMetric()[0].GetGauge().GetValue() }

	infos = []WorkerInfo{{ID: 1, Models: many}}
	require.Len(t, gather(t, tel)[MetricWorkerInfo].GetMetric(), infoModels)
	require.InDelta(t, 5, left(), 0)
	for id := range infoSeries/infoModels + 9 {
		infos = append(infos, WorkerInfo{ID: worker.ID(id + 2), Models: many[:infoModels]})
	}
	require.Len(t, gather(t, tel)[MetricWorkerInfo].GetMetric(), infoSeries)
	require.InDelta(t, 5+10*infoModels, left(), 0)
}

// TestLossesOfManyModelsKeepTheirCauses, as far as the counter goes.
func TestLossesOfManyModelsKeepTheirCauses(t *testing.T) {
	tel := newTelemetry(t, Config{})
	for m := range maxSets {
		for _, cause := range LossCauses() {
			tel.Instruments.OverlapLost(strconv.Itoa(m), cause, 1)
		}
	}
	tel.Instruments.OverlapLost("0", LossLoad, -5)
	lines := gather(t, tel)[MetricOverlapLost].GetMetric()
	require.Len(t, lines, maxSets*len(LossCauses()))
	for _, m := range lines {
		require.InDelta(t, 1, m.GetCounter().GetValue(), 0)
	}
}
