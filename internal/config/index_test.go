package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

func TestTheIndexIsAsTheConfigurationSays(t *testing.T) {
	c := Default()
	route := kvindex.RouteConfig{TTL: 2 * time.Minute, PredictedTTL: 10 * time.Second}
	require.Equal(t, kvindex.TreeConfig{MaxBytes: kvindex.DefaultMaxBytes, Route: route}, c.Tree())
	c.Index.MaxBytes = 5
	require.Equal(t, kvindex.TreeConfig{MaxBytes: 5, Route: route}, c.Tree())
}
