package plugin

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestServersTakeTurnsAtOneListener(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "x.sock"))
	require.NoError(t, err)
	all := inTurns(l.Addr())
	all.add(l)
	dial := func() net.Conn {
		c, err := net.Dial("unix", l.Addr().String())
		require.NoError(t, err)
		return c
	}
	serve := func(turn net.Listener) {
		t.Helper()
		c, err := turn.Accept()
		require.NoError(t, err)
		_, err = c.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	served := func(c net.Conn) {
		t.Helper()
		b := make([]byte, 1)
		_, err := c.Read(b)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}

	first, second := all.turn(), all.turn()
	c := dial()
	serve(first)
	served(c)
	blocked := make(chan error, 1)
	go func() {
		_, err := first.Accept()
		blocked <- err
	}()
	require.NoError(t, first.Close())
	require.NoError(t, first.Close(), "twice is no matter")
	require.ErrorIs(t, <-blocked, net.ErrClosed)

	between := dial() // nobody's turn
	_, err = first.Accept()
	require.ErrorIs(t, err, net.ErrClosed, "what waits is the next one's")
	serve(second)
	served(between)

	waits := dial()
	require.NoError(t, all.Close())
	require.NoError(t, all.Close())
	_, err = second.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = waits.Read(make([]byte, 1))
	require.Error(t, err, "it is closed")
	require.NoError(t, waits.Close())
	require.NoError(t, second.Close())
}

// stumbling is a listener whose first Accept fails for a moment.
type stumbling struct {
	net.Listener
	stumbled bool
}

var errNoFiles = errors.New("too many open files")

func (l *stumbling) Accept() (net.Conn, error) {
	if !l.stumbled {
		l.stumbled = true
		return nil, errNoFiles
	}
	return l.Listener.Accept()
}

func TestAnErrorThatPassesIsTheServersMatter(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "x.sock"))
	require.NoError(t, err)
	all := inTurns(l.Addr())
	all.add(&stumbling{Listener: l})
	turn := all.turn()
	_, err = turn.Accept()
	require.ErrorIs(t, err, errNoFiles)
	c, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	got, err := turn.Accept()
	require.NoError(t, err)
	require.NoError(t, got.Close())
	require.NoError(t, c.Close())
	require.NoError(t, all.Close())
}

// An end without trouble says nothing that sounds like it.
func TestADrainWarnsOfNothing(t *testing.T) {
	for range 20 {
		r := startPlugin(t, "listen: unix://"+filepath.Join(t.TempDir(), "x.sock")+"\n")
		r.stop()
		require.NoError(t, <-r.ended)
		r.ended <- nil
		require.Contains(t, r.log.String(), "drained")
		for line := range strings.Lines(r.log.String()) {
			if !strings.Contains(line, "msg=discovery") { // there is no file of workers
				require.NotContains(t, line, "level=WARN")
			}
		}
	}
}
