package worker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// untold returns a worker of which only the place is known, and the role.
func untold(t *testing.T, id worker.ID, role worker.Role, addr, deployment string) *worker.Worker {
	w := good(t, id, role, addr)
	w.Engine, w.Models, w.BlockSize, w.FactsUnknown, w.Deployment = "", nil, 0, true, deployment
	return w
}

func ids(ws []*worker.Worker) (out []worker.ID) {
	for _, w := range ws {
		out = append(out, w.ID)
	}
	return out
}

func TestAWorkerMayLackFactsOnlyIfItSaysSo(t *testing.T) {
	w := untold(t, 1, worker.Aggregated, "10.0.0.1:80", "")
	require.NoError(t, w.Validate())
	require.False(t, w.Complete())
	w.FactsUnknown = false
	for _, text := range []string{"engine", "models", "block_size"} {
		require.ErrorContains(t, w.Validate(), text)
	}
	w = untold(t, 1, worker.Aggregated, "10.0.0.1:80", "")
	w.Engine = "sglangg"
	require.ErrorContains(t, w.Validate(), "sglangg", "what is given must be right")
	w = untold(t, 1, worker.Aggregated, "10.0.0.1:80", "")
	w.Models = []string{""}
	require.ErrorContains(t, w.Validate(), "models")
	require.True(t, good(t, 1, worker.Decode, "10.0.0.1:80").Complete())
}

// Nothing is known of how it hands KV over, nor of which model's it is.
func TestAWorkerWithoutFactsServesOnlyWholeRequests(t *testing.T) {
	for _, role := range []worker.Role{worker.Prefill, worker.Decode} {
		w := untold(t, 1, role, "10.0.0.1:80", "")
		require.False(t, w.CanServe(role), role)
		w.Engine, w.Models, w.BlockSize = worker.VLLM, []string{"m"}, 16
		require.True(t, w.CanServe(role), role)
	}
	require.True(t, untold(t, 1, worker.Aggregated, "10.0.0.1:80", "").CanServe(worker.Aggregated))
}

func TestAWorkerWithoutModelsServesThoseOfItsDeployment(t *testing.T) {
	a := good(t, 10, worker.Aggregated, "10.0.0.1:80")
	a.Models, a.Adapters, a.Deployment = []string{"m", "lora"}, []string{"lora"}, "blue"
	other := good(t, 11, worker.Aggregated, "10.0.0.2:80")
	other.Models, other.Deployment = []string{"n"}, "green"
	s, err := worker.NewSnapshot(1, []*worker.Worker{
		untold(t, 1, worker.Aggregated, "10.0.0.3:80", "blue"), untold(t, 2, worker.Aggregated, "10.0.0.4:80", "red"),
		untold(t, 3, worker.Prefill, "10.0.0.5:80", "blue"), a, other,
	})
	require.NoError(t, err)
	pool := func(model string) *worker.Pool { return s.Pool(worker.Key{Model: model}) }
	require.Equal(t, []worker.ID{10, 1}, ids(pool("m").Aggregated), "whose facts are known comes first")
	require.Equal(t, []worker.Rank{{ID: 10}, {ID: 1}}, pool("m").AggregatedRanks)
	require.Empty(t, pool("m").Prefill)
	require.Equal(t, []worker.ID{10}, ids(pool("lora").Aggregated), "an adapter is loaded by each for itself")
	require.Equal(t, []worker.ID{11}, ids(pool("n").Aggregated))
	require.Equal(t, []worker.ID{1, 2}, ids(pool(worker.NoModel).Aggregated))
	require.Contains(t, s.Keys(), worker.Key{Model: worker.NoModel})

	unnamed := good(t, 12, worker.Aggregated, "10.0.0.6:80")
	s, err = worker.NewSnapshot(1, []*worker.Worker{untold(t, 1, worker.Aggregated, "10.0.0.3:80", ""), unnamed})
	require.NoError(t, err)
	require.Equal(t, []worker.ID{12}, ids(s.Pool(worker.Key{Model: unnamed.Models[0]}).Aggregated), "workers without a deployment's name may serve many models")

	s, err = worker.NewSnapshot(1, []*worker.Worker{untold(t, 3, worker.Prefill, "10.0.0.5:80", "blue")})
	require.NoError(t, err)
	require.NotNil(t, s.Pool(worker.Key{}), "it is known that somebody will come who may serve")
	require.Empty(t, s.Pool(worker.Key{}).AggregatedRanks)
	require.Nil(t, s.Pool(worker.Key{Model: "m"}))
}

func TestWhatAWorkerIsAskedForAnswers(t *testing.T) {
	w := untold(t, 1, worker.Aggregated, "10.0.0.1:80", "")
	require.True(t, w.Answers("any"))
	w.Models = []string{"m"}
	require.True(t, w.Answers("m"))
	require.False(t, w.Answers("any"))
}

func TestFactsAreASet(t *testing.T) {
	f := worker.FactRole | worker.FactKVEvents
	require.True(t, f.Has(worker.FactRole))
	require.True(t, f.Has(worker.FactRole|worker.FactKVEvents))
	require.False(t, f.Has(worker.FactRole|worker.FactEngine))
}
