package extproc

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// lives starts a replica at the address, whose process has the given life. It runs until stop
// is called. Without a life it is of an older version, which does not know the call.
func lives(t *testing.T, addr, life string) (at string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	g := grpc.NewServer()
	if life != "" {
		sealer, err := prefill.NewSealer([]byte("a key that both replicas have"))
		require.NoError(t, err)
		p := newPeers(l.Addr().String(), life, slog.New(slog.DiscardHandler), insecure.NewCredentials(), func() {})
		g.RegisterService(legsDesc(&Server{peers: p, sealer: sealer}), nil)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = g.Serve(l) }()
	return l.Addr().String(), func() { g.Stop(); <-ended }
}

// TestAReplicaIsAliveReplacedOrSilent: a replica that was away and is back is alive, although
// the last call to it failed. Another process at its address is told from it.
func TestAReplicaIsAliveReplacedOrSilent(t *testing.T) {
	owner := newPeers("", "", slog.New(slog.DiscardHandler), insecure.NewCredentials(), func() {})
	defer owner.close()
	ask := func(at carrier, within time.Duration) pulse {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return owner.pulse(ctx, at)
	}
	back := func(at carrier) (p pulse) { // a busy machine may take longer than one question waits
		require.Eventually(t, func() bool {
			p = ask(at, time.Minute)
			return p != silent
		}, time.Minute, time.Millisecond)
		return p
	}
	addr, stop := lives(t, "127.0.0.1:0", "first")
	require.Equal(t, alive, ask(carrier{addr, "first"}, time.Minute))
	require.Equal(t, alive, ask(carrier{addr, ""}, time.Minute), "it has not said")
	require.Equal(t, replaced, ask(carrier{addr, "zeroth"}, time.Minute))
	ends := func() {
		stop()
		conn, err := owner.conn(addr)
		require.NoError(t, err)
		for conn.GetState() == connectivity.Ready {
			require.True(t, conn.WaitForStateChange(t.Context(), connectivity.Ready))
		}
	}
	ends()
	require.Equal(t, silent, ask(carrier{addr, "first"}, 200*time.Millisecond))
	_, stop = lives(t, addr, "second")
	require.Equal(t, replaced, back(carrier{addr, "first"}))
	require.Equal(t, alive, ask(carrier{addr, "second"}, time.Minute))
	ends()
	_, stop = lives(t, addr, "")
	defer stop()
	require.Equal(t, alive, back(carrier{addr, "second"}), "an older one")
}
