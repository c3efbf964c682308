package trtllm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

func TestIdsAreForgottenInTheEnd(t *testing.T) {
	s := &idSet{ids: make(map[int64]struct{})}
	for i := range int64(idsKept + 1) {
		require.True(t, s.add(i))
	}
	require.False(t, s.add(1))
	require.True(t, s.add(0), "the oldest is forgotten")
}

func TestTheDefaultLeaseIsTheEngines(t *testing.T) {
	require.Equal(t, 60*time.Second, core.Config{}.WithDefaults(Kind()).KVLease)
}
