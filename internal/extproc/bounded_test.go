package extproc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/wire"
)

func TestALongRequestIDIsKeptAsADigest(t *testing.T) {
	long := strings.Repeat("a", 60<<10)
	require.Equal(t, "r1", bounded("r1"))
	require.LessOrEqual(t, len(bounded(long)), maxKeyBytes)
	require.NotEqual(t, bounded(long), bounded(long+"b"), "two requests stay two")
	require.Equal(t, nameOf(long, 2), nameOf(long, 2), "the access log finds it")

	a := newAvoidList(time.Minute)
	q := &leg.Request{Attempt: 1, Headers: wire.Headers{Start: long, RequestID: long}}
	a.add(q, leg.Lesson{}, time.Now())
	require.LessOrEqual(t, len(avoidKey(&q.Headers)), maxKeyBytes)
	q.Attempt = 2
	_, ours := a.of(q)
	require.True(t, ours, "what is known of it is found")
}

func TestConnectionsToReplicasThatHaveGoneAreClosed(t *testing.T) {
	p := newPeers("self:1", "1", nil, insecure.NewCredentials(), func() {})
	defer p.close()
	old, err := p.conn("127.0.0.1:1")
	require.NoError(t, err)
	require.Equal(t, connectivity.Idle, old.GetState())
	for i := range 100 {
		_, err := p.conn(fmt.Sprintf("127.0.0.1:%d", 2+i))
		require.NoError(t, err)
	}
	require.Len(t, p.conns, 101, "one that was asked for just now may be about to be used")
	for _, c := range p.conns {
		c.used = c.used.Add(-peerKept - time.Second)
	}
	again, err := p.conn("127.0.0.1:1")
	require.NoError(t, err)
	require.Same(t, old, again)
	_, err = p.conn("127.0.0.1:999")
	require.NoError(t, err)
	require.Len(t, p.conns, 2, "the one that is in use, and the new one")
	require.Equal(t, connectivity.Idle, old.GetState())
}
