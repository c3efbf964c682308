package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestWhereAnEngineBehindASidecarIsAsked: rank r's engine answers at a port that is higher
// by r.
func TestWhereAnEngineBehindASidecarIsAsked(t *testing.T) {
	at, err := worker.ParseEndpoint("10.0.0.7:8002")
	require.NoError(t, err)
	w := &worker.Worker{ID: 1, Role: worker.Decode, Endpoint: at, DPSize: 1, EngineRank: 2, FactsUnknown: true}
	require.Empty(t, readAnnotations(w, map[string]string{"baton.dev/facts-port": "8200"}))
	require.Equal(t, uint16(8202), w.FactsPort)
	require.Zero(t, w.Fixed, "it is no fact of the engine")
	require.Len(t, readAnnotations(w, map[string]string{"baton.dev/facts-port": "x"}), 1)
}
