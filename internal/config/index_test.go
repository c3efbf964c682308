package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

func TestHugePagesAreAskedForUnlessToldOtherwise(t *testing.T) {
	yes, no := true, false
	c := Default()
	route := kvindex.RouteConfig{TTL: 2 * time.Minute, PredictedTTL: 10 * time.Second}
	require.Equal(t, kvindex.TreeConfig{MaxBytes: kvindex.DefaultMaxBytes, Route: route}, c.Tree())
	c.Index.HugePages = &yes
	require.False(t, c.Tree().NoHugePages)
	c.Index.HugePages, c.Index.MaxBytes = &no, 5
	require.Equal(t, kvindex.TreeConfig{MaxBytes: 5, NoHugePages: true, Route: route}, c.Tree())
}
