package extproc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestWhoHasLeftIsRememberedForAWhile(t *testing.T) {
	l := newLeavers()
	now := time.Now()
	at := func(s string) worker.Endpoint {
		e, err := worker.ParseEndpoint(s)
		require.NoError(t, err)
		return e
	}
	old := func(id worker.ID, e worker.Endpoint) *worker.Snapshot {
		s, err := worker.NewSnapshot(1, []*worker.Worker{{
			ID: id, Role: worker.Decode, Engine: worker.SGLang, Models: []string{"m"}, DPSize: 2, PortPerRank: true, BlockSize: 4, Endpoint: e,
		}})
		require.NoError(t, err)
		return s
	}
	require.False(t, l.has(7))
	require.False(t, l.hasAt(at("10.0.0.7:80")))
	l.add([]worker.ID{7}, old(7, at("10.0.0.7:80")), now)
	require.True(t, l.has(7))
	require.True(t, l.hasAt(at("10.0.0.7:80")))
	require.True(t, l.hasAt(at("10.0.0.7:81")), "where its other rank was")
	require.False(t, l.hasAt(at("10.0.0.7:82")))
	l.add([]worker.ID{8}, nil, now.Add(leaversKept+time.Second))
	require.False(t, l.has(7))
	require.False(t, l.hasAt(at("10.0.0.7:80")))
	require.True(t, l.has(8))
}

func TestOnlySoManyLeaversAreRemembered(t *testing.T) {
	l := newLeavers()
	var ids []worker.ID
	for id := range worker.ID(leaversMost + 1) {
		ids = append(ids, id)
	}
	l.add(ids, nil, time.Now())
	require.True(t, l.has(leaversMost-1))
	require.False(t, l.has(leaversMost))
}
