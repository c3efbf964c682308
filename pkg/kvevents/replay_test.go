package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var testLimits = replayLimits{time: time.Hour, bytes: 1 << 20}

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

// A router without an answer is given up after the timeout. It gets no PINGs in the
// meantime.
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
					n, _ := theirs.Read(b) // returns when our side closes
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
				err := replay(ctx, func(context.Context, string, string) (net.Conn, error) { return ours, nil }, "test", 3, cfg, testLimits,
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

func TestAReplayHasABound(t *testing.T) {
	for name, c := range map[string]struct {
		every time.Duration
		seq   func(i int) uint64
		want  string
	}{
		"a router that goes round and round": {0, func(i int) uint64 { return 3 + uint64(i)%4 }, "message 3 after 6"},
		"one that repeats itself":            {0, func(int) uint64 { return 3 }, "message 3 after 3"},
		"one that brings without end":        {0, func(i int) uint64 { return 3 + uint64(i) }, "message 1051 is beyond"},
		"one that takes for ever":            {time.Minute, func(i int) uint64 { return 3 + uint64(i) }, "gone on for 1h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer theirs.Close()
					p := newPeer(theirs)
					if p.greet(1, "ROUTER") != nil {
						return
					}
					_, _, _ = p.read()
					_, _, _ = p.read()
					for i := 0; p.send(nil, be64(c.seq(i)), make([]byte, 1000)) == nil; i++ {
						<-time.After(c.every)
					}
				}()
				cfg := connConfig{maxBytes: 4096, timeout: 2 * time.Minute}
				err := replay(t.Context(), func(context.Context, string, string) (net.Conn, error) { return ours, nil }, "test", 3, cfg,
					testLimits, func(message) bool { return true })
				require.ErrorIs(t, err, errEndless)
				require.ErrorContains(t, err, c.want)
				<-done
			})
		})
	}
	many := budget{messages: maxReplay, bytes: 1}
	for i := range maxReplay {
		require.NoError(t, many.take(message{seq: uint64(i)}))
	}
	require.ErrorIs(t, many.take(message{seq: maxReplay}), errEndless)
}

// serveRouter answers each question for a replay with the messages that answer sends,
// until answer fails.
func serveRouter(t *testing.T, answer func(from uint64, p *peer) error) (port uint16, asked func() int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	var n atomic.Int64
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer nc.Close()
				p := newPeer(nc)
				if p.greet(1, "ROUTER") != nil {
					return
				}
				for {
					_, _, _ = p.read()
					_, from, err := p.read()
					if err != nil {
						return
					}
					n.Add(1)
					if answer(binary.BigEndian.Uint64(from), p) != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return uint16(l.Addr().(*net.TCPAddr).Port), func() int { return int(n.Load()) }
}

func TestAPublisherWhoseReplayHasNoEndIsAskedForNoneUntilItIsConnectedAnew(t *testing.T) {
	same := make([][]byte, 64)
	for i := range same {
		same[i] = payload(t, 0, block(i))
	}
	var told atomic.Int64
	for name, answer := range map[string]func(uint64, *peer) error{
		"it goes round and round": func(_ uint64, p *peer) error {
			for i := 0; ; i++ {
				if err := p.send(nil, be64(uint64(i)%4), payload(t, 0, block(i%4))); err != nil {
					return err
				}
			}
		},
		"each brings one message more, and never what is missing": func(from uint64, p *peer) error {
			for seq := from; seq <= from+1; seq++ {
				if err := p.send(nil, be64(seq), same[seq%64]); err != nil {
					return err
				}
			}
			return p.send(nil, be64(endOfReplay), nil)
		},
		"each tells of another past": func(from uint64, p *peer) error {
			for seq := range uint64(3) {
				if err := p.send(nil, be64(seq), payload(t, 0, block(int(told.Add(1))))); err != nil {
					return err
				}
			}
			return p.send(nil, be64(endOfReplay), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newWirePublisher(t, false, 100, 1000)
			p.seq = 1 << 20
			source := p.source()
			var asked func() int
			source.ReplayPort, asked = serveRouter(t, answer)
			r := newRig(t, nil)
			r.follow(source)
			r.eventually("given up", func() bool {
				p.publish(payload(t, 0, block(1000)))
				s := r.status(one)
				return s.State == StateDegraded && strings.Contains(s.LastError, "no end")
			})
			n := asked()
			require.LessOrEqual(t, n, 2*maxBarren+4)
			before := r.status(one).Messages
			r.eventually("it is followed all the same", func() bool {
				p.publish(payload(t, 0, block(1001)))
				return r.status(one).Messages > before+5
			})
			require.Equal(t, n, asked())
			p.cut()
			r.eventually("connected anew", func() bool { return asked() > n })
		})
	}
}
