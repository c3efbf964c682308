package config

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/extproc"
)

// TestTheGatewaysDefaults: off, one destination, the reason said, and no client
// that chooses for itself. What is refused is in testdata/bad.
func TestTheGatewaysDefaults(t *testing.T) {
	c := Default()
	require.Equal(t, extproc.Gateway{Endpoints: 1, ReasonHeader: "x-llm-d-request-dropped-reason"}, c.gateway())
	require.Empty(t, c.Gateway.validate())

	c.Gateway = GatewayConfig{Endpoints: 8, UnknownModels: "refuse", SelectionHeader: true}
	require.Empty(t, c.Gateway.validate())
	require.Equal(t, extproc.Gateway{Endpoints: 8, ReasonHeader: reasonHeader}, c.gateway(), "the selection header is only the gateway's")
	c.Gateway.Enabled = true
	require.Equal(t, extproc.Gateway{Enabled: true, Endpoints: 8, ReasonHeader: reasonHeader, SelectionHeader: true}, c.gateway())
}
