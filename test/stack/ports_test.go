package stack

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAHeldPortIsForChildrenOnly(t *testing.T) {
	ports, err := FreePorts(t.Context(), 2)
	require.NoError(t, err)
	require.NotEqual(t, ports[0], ports[1])
	at := fmt.Sprintf("127.0.0.1:%d", ports[0])

	_, err = net.Dial("tcp", at)
	require.ErrorContains(t, err, "refused", "while nobody listens")

	for range 2 { // and again after the first listener is closed
		l, err := net.Listen("tcp", at)
		require.NoError(t, err)
		_, err = net.Listen("tcp", at)
		require.ErrorContains(t, err, "in use", "one listens there")
		c, err := net.Dial("tcp", at)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
	}
}

// A process that asks the kernel for thousands of ports gets none that is held,
// of whatever address.
func TestNobodyIsGivenAHeldPort(t *testing.T) {
	held, err := FreePorts(t.Context(), 50)
	require.NoError(t, err)
	row, err := FreeRow(t.Context(), 8)
	require.NoError(t, err)
	taken := map[int]bool{}
	for _, p := range held {
		taken[p] = true
	}
	for i := range 8 {
		require.NotContains(t, taken, row+i)
		taken[row+i] = true
	}
	for i := range 4000 {
		l, err := net.Listen("tcp", []string{"127.0.0.1:0", "127.0.0.77:0"}[i%2])
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		require.NotContains(t, taken, l.Addr().(*net.TCPAddr).Port)
	}
}

// A long run of tests would otherwise use up the machine's ports and the process's files.
func TestAPortIsGivenBackAfterItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		port, err := FreeRow(ctx, 2)
		require.NoError(t, err)
		for i := range 2 {
			_, _, err = hold(port + i)
			require.ErrorIs(t, err, syscall.EADDRINUSE, "held")
		}
		cancel()
		after := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		after(linger - time.Second)
		_, _, err = hold(port)
		require.ErrorIs(t, err, syscall.EADDRINUSE, "somebody may still call it")
		after(2 * time.Second)
		for i := range 2 {
			fd, _, err := hold(port + i)
			require.NoError(t, err)
			require.NoError(t, syscall.Close(fd))
		}
	})
}
