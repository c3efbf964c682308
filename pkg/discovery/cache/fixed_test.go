package cache

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestWhatIsOfNoUseAfterARestartIsNotKept(t *testing.T) {
	at, err := worker.ParseEndpoint("10.0.0.7:8001")
	require.NoError(t, err)
	w := &worker.Worker{ID: 7, Role: worker.Aggregated, Endpoint: at, DPSize: 1, FactsUnknown: true, Fixed: worker.FactKVEvents}
	kept := known([]discovery.Entry{{Key: "a", Worker: w}})
	_, err = written("", kept)
	require.NoError(t, err)
	require.Zero(t, kept[0].Fixed)
	require.Equal(t, worker.FactKVEvents, w.Fixed, "the worker itself is shared")
}
