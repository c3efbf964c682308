package stack

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAHeldPortIsForChildrenOnly(t *testing.T) {
	ports, err := FreePorts(2)
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

// A process that asks the kernel for thousands of ports gets none that is held.
func TestNobodyIsGivenAHeldPort(t *testing.T) {
	held, err := FreePorts(50)
	require.NoError(t, err)
	row, err := FreeRow(8)
	require.NoError(t, err)
	taken := map[int]bool{}
	for _, p := range held {
		taken[p] = true
	}
	for i := range 8 {
		require.NotContains(t, taken, row+i)
		taken[row+i] = true
	}
	for range 2000 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		require.NotContains(t, taken, l.Addr().(*net.TCPAddr).Port)
	}
}
