package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/config"
)

func TestANameStandsForAllItsAddresses(t *testing.T) {
	got, err := resolved(t.Context(), []string{"10.0.0.1:1", "localhost:2", "nobody.invalid:3", "[::1]:4"})
	require.NoError(t, err, "one that is not known yet keeps nobody out")
	require.Contains(t, got, "10.0.0.1:1")
	require.Contains(t, got, "[::1]:4")
	require.Subset(t, []string{"127.0.0.1:2", "[::1]:2", "10.0.0.1:1", "[::1]:4"}, got)
	_, err = resolved(t.Context(), []string{"nobody.invalid:3"})
	require.Error(t, err)
}

func TestReplicasAreListedWhereTheConfigurationSays(t *testing.T) {
	c := config.Default()
	c.Leg.Advertise, c.Leg.Replicas, c.Leg.ReplicasService = "10.0.0.1:9002", []string{"10.0.0.2:9002"}, "pickers"
	c.Discovery.Etcd.Endpoints = []string{"127.0.0.1:1"}
	c.In("prod")
	lists, closers, err := listersOf(&c, true)
	require.NoError(t, err)
	require.Len(t, lists, 2, "etcd is not reached by a check")
	require.Contains(t, lists, "leg.replicas")
	require.Contains(t, lists, "service prod/pickers")
	require.NoError(t, closeAll(closers))
	lists, closers, err = listersOf(&c, false)
	require.ErrorContains(t, err, "leg.replicas_service")
	require.Nil(t, lists)
	require.NoError(t, closeAll(closers))
}
