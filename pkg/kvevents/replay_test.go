package kvevents

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOnlyFramesOfTheProtocolAreMessages(t *testing.T) {
	frames := func(lengths ...int) [][]byte {
		var out [][]byte
		for _, n := range lengths {
			out = append(out, make([]byte, n))
		}
		return out
	}
	for name, c := range map[string]struct {
		frames              [][]byte
		published, replayed bool
	}{
		"none":                              {nil, false, false},
		"a payload alone":                   {frames(5), false, false},
		"a sequence and a payload":          {frames(8, 5), false, true},
		"a topic, a sequence and a payload": {frames(2, 8, 5), true, true},
		"a topic, seven bytes, a payload":   {frames(2, 7, 5), false, false},
		"a topic, nine bytes, a payload":    {frames(2, 9, 5), false, false},
		"with an empty frame before":        {frames(0, 2, 8, 5), false, true},
		"with two frames before":            {frames(0, 0, 2, 8, 5), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, ok := parsePublished(c.frames)
			require.Equal(t, c.published, ok)
			_, ok = parseReplayed(c.frames)
			require.Equal(t, c.replayed, ok)
		})
	}
}

// A router that has nothing to say is given up by its silence, and is not
// asked for signs of life meanwhile.
func TestASilentRouterIsGivenUp(t *testing.T) {
	for name, ended := range map[string]bool{"in time": false, "when nobody waits any more": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				heard := make(chan []byte, 1)
				go func() {
					defer theirs.Close()
					p := newPeer(theirs)
					if p.greet(1, "ROUTER") != nil {
						return
					}
					_, _, _ = p.read()
					_, _, _ = p.read()
					b := make([]byte, 1)
					n, _ := theirs.Read(b) // until ours is closed
					heard <- b[:n]
				}()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if ended {
					time.AfterFunc(time.Second, cancel)
				}
				cfg := testConn
				cfg.timeout = time.Minute
				began := time.Now()
				err := replay(ctx, func(context.Context, string, string) (net.Conn, error) { return ours, nil }, "test", 3, cfg,
					func(message) bool { return true })
				var timeout net.Error
				if ended {
					require.ErrorIs(t, err, context.Canceled)
					require.Equal(t, time.Second, time.Since(began))
				} else {
					require.True(t, errors.As(err, &timeout) && timeout.Timeout(), "%v", err)
					require.Equal(t, time.Minute, time.Since(began))
				}
				require.Empty(t, <-heard)
			})
		})
	}
}
