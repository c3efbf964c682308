package kvevents

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"
)

var testConn = connConfig{maxBytes: 1 << 10, heartbeat: 5 * time.Second, timeout: 5 * time.Second}

// piped returns a connection of ours. serve plays its other side.
func piped(t *testing.T, typ socketType, serve func(*peer)) (*conn, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve(newPeer(theirs))
	}()
	t.Cleanup(func() {
		_ = ours.Close()
		_ = theirs.Close()
		<-done
	})
	return dialZMQ(t.Context(), func(context.Context, string, string) (net.Conn, error) { return ours, nil }, "test", typ, testConn)
}

func TestHandshakeRefusesWhatIsNoPublisher(t *testing.T) {
	greeting := func(major, minor byte, mech string) []byte {
		g := make([]byte, 64)
		g[0], g[9], g[10], g[11] = 0xff, 0x7f, major, minor
		copy(g[12:], mech)
		return g
	}
	raw := func(b []byte) func(*peer) {
		return func(p *peer) {
			go func() { _ = p.write(b) }()
			buf := make([]byte, 64)
			for {
				if _, err := p.nc.Read(buf); err != nil {
					return
				}
			}
		}
	}
	ready := func(typ string) []byte {
		return appendFrame(nil, flagCommand, appendProperty([]byte("\x05READY"), "socket-TYPE", typ))
	}
	for name, c := range map[string]struct {
		serve func(*peer)
		want  string
	}{
		"an HTTP server":            {raw([]byte("HTTP/1.1 400 Bad Request\r\n" + strings.Repeat("x", 64))), "expected version 3"},
		"version 2":                 {raw(greeting(2, 0, "NULL")), "expected version 3"},
		"another mechanism":         {raw(greeting(3, 1, "PLAIN")), "expected NULL"},
		"another socket type":       {raw(append(greeting(3, 1, "NULL"), ready("PUSH")...)), `"PUSH" does not serve SUB`},
		"a READY without a type":    {raw(append(greeting(3, 1, "NULL"), appendFrame(nil, flagCommand, []byte("\x05READY"))...)), "without Socket-Type"},
		"an error instead of READY": {raw(append(greeting(3, 1, "NULL"), appendFrame(nil, flagCommand, []byte("\x05ERROR\x02no"))...)), "expected READY"},
		"a message before READY":    {raw(append(greeting(3, 1, "NULL"), appendFrame(nil, 0, []byte("\x05READY"))...)), "expected READY"},
		"cut metadata":              {raw(append(greeting(3, 1, "NULL"), appendFrame(nil, flagCommand, []byte("\x05READY\x0bSocket-Type\x00\x00\x00\x09PUB"))...)), "without Socket-Type"},
		"a closed connection":       {func(p *peer) { _ = p.nc.Close() }, "handshake"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := piped(t, typeSub, c.serve)
			require.ErrorContains(t, err, c.want)
		})
	}
	t.Run("a property name in another case is taken", func(t *testing.T) {
		_, err := piped(t, typeSub, raw(append(greeting(3, 1, "NULL"), ready("XPUB")...)))
		require.NoError(t, err)
	})
	t.Run("a later version is taken", func(t *testing.T) {
		_, err := piped(t, typeSub, raw(append(greeting(4, 0, "NULL"), ready("PUB")...)))
		require.NoError(t, err)
	})
}

func TestASilentPeerIsGivenUpDuringTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := piped(t, typeSub, func(p *peer) {
			buf := make([]byte, 256)
			for {
				if _, err := p.nc.Read(buf); err != nil {
					return
				}
			}
		})
		require.ErrorContains(t, err, "greeting")
		require.Equal(t, testConn.timeout, time.Since(began))
	})
}

func TestReceive(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, c := range map[string]struct {
		send []byte
		want []string
		err  string
	}{
		"a message of three frames":  {appendFrame(appendFrame(appendFrame(nil, flagMore, []byte("t")), flagMore, be64(7)), 0, []byte("p")), []string{"t", string(be64(7)), "p"}, ""},
		"a long frame":               {appendFrame(nil, 0, []byte(long)), []string{long}, ""},
		"a command before it":        {append(appendFrame(nil, flagCommand, []byte("\x03FOOx")), appendFrame(nil, 0, []byte("p"))...), []string{"p"}, ""},
		"an empty frame":             {appendFrame(nil, 0, nil), []string{""}, ""},
		"a frame beyond the limit":   {appendFrame(nil, 0, make([]byte, 1025)), nil, "at most 1024"},
		"frames beyond the limit":    {append(appendFrame(nil, flagMore, make([]byte, 600)), appendFrame(nil, 0, make([]byte, 600))...), nil, "at most 424"},
		"a command beyond its limit": {appendFrame(nil, flagCommand, make([]byte, maxCommand+1)), nil, "at most 8192"},
		"a frame of 2^64-1 bytes":    {append([]byte{flagLong}, be64(1<<64-1)...), nil, "at most 1024"},
		"reserved flags":             {[]byte{0x80, 0}, nil, "flags"},
		"an empty command":           {[]byte{flagCommand, 0}, nil, "command"},
		"a cut command":              {[]byte{flagCommand, 2, 5, 'P'}, nil, "command"},
		"a cut PING":                 {appendFrame(nil, flagCommand, []byte("\x04PING\x00")), nil, "PING"},
		"an ERROR":                   {appendFrame(nil, flagCommand, []byte("\x05ERROR\x02no")), nil, "no"},
		"too many frames":            {append(bytesRepeat(appendFrame(nil, flagMore, nil), 8), 0, 0), nil, "more than 8"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := piped(t, typeSub, func(p *peer) {
				if p.greet(1, "PUB") == nil {
					_ = p.write(c.send)
				}
			})
			require.NoError(t, err)
			frames, err := got.receive(nil)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			var text []string
			for _, f := range frames {
				text = append(text, string(f))
			}
			require.Equal(t, c.want, text)
		})
	}
}

func bytesRepeat(b []byte, n int) (out []byte) {
	for range n {
		out = append(out, b...)
	}
	return out
}

func TestPingIsAnsweredWithItsContext(t *testing.T) {
	got := make(chan string, 1)
	c, err := piped(t, typeSub, func(p *peer) {
		if p.greet(1, "PUB") != nil {
			return
		}
		_ = p.write(appendFrame(nil, flagCommand, []byte("\x04PING\x00\x00context")))
		_, b, _ := p.read()
		got <- string(b)
		_ = p.send([]byte("after"))
	})
	require.NoError(t, err)
	frames, err := c.receive(nil)
	require.NoError(t, err)
	require.Equal(t, "after", string(frames[0]))
	require.Equal(t, "\x04PONGcontext", <-got)
}

func TestASilentPeerIsGivenUpOnlyIfItKnowsHeartbeats(t *testing.T) {
	silent := func(minor byte) func(p *peer) {
		return func(p *peer) {
			if p.greet(minor, "PUB") != nil {
				return
			}
			buf := make([]byte, 64)
			for {
				if _, err := p.nc.Read(buf); err != nil {
					return
				}
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c, err := piped(t, typeSub, silent(1))
		require.NoError(t, err)
		require.NoError(t, c.ping())
		began := time.Now()
		_, err = c.receive(nil)
		var timeout net.Error
		require.True(t, errors.As(err, &timeout) && timeout.Timeout(), "%v", err)
		require.Equal(t, 15*time.Second, time.Since(began))
	})
	synctest.Test(t, func(t *testing.T) {
		c, err := piped(t, typeSub, silent(0))
		require.NoError(t, err)
		require.NoError(t, c.ping()) // a 3.0 peer gets no PING
		ended := make(chan error, 1)
		go func() {
			_, err := c.receive(nil)
			ended <- err
		}()
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(time.Hour):
		}
		c.close()
		require.Error(t, <-ended)
	})
}

func TestReplayTakesBothFramings(t *testing.T) {
	for name, c := range map[string]struct {
		answers [][][]byte
		want    []uint64
		err     string
	}{
		"before vLLM 0.26":         {[][][]byte{{nil, be64(4), []byte("p")}, {nil, be64(5), []byte("p")}, {nil, be64(endOfReplay), nil}}, []uint64{4, 5}, ""},
		"since vLLM 0.26":          {[][][]byte{{nil, []byte("t"), be64(4), []byte("p")}, {nil, nil, be64(endOfReplay), nil}}, []uint64{4}, ""},
		"nothing to replay":        {[][][]byte{{nil, nil, be64(endOfReplay), nil}}, nil, ""},
		"a message of one frame":   {[][][]byte{{[]byte("x")}}, nil, "expected a sequence"},
		"a sequence of four bytes": {[][][]byte{{nil, []byte("1234"), nil}}, nil, "expected a sequence"},
		"an end without a marker":  {[][][]byte{{nil, be64(4), []byte("p")}}, []uint64{4}, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			asked := make(chan string, 1)
			go func() {
				defer theirs.Close()
				p := newPeer(theirs)
				if p.greet(1, "ROUTER") != nil {
					return
				}
				f1, b1, _ := p.read()
				f2, b2, _ := p.read()
				asked <- string([]byte{f1, f2}) + string(b1) + "|" + string(b2)
				for _, a := range c.answers {
					_ = p.send(a...)
				}
			}()
			var got []uint64
			err := replay(t.Context(), func(context.Context, string, string) (net.Conn, error) { return ours, nil }, "test", 3, testConn, testLimits,
				func(m message) bool {
					got = append(got, m.seq)
					return true
				})
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
			require.Equal(t, c.want, got)
			require.Equal(t, "\x01\x00|"+string(be64(3)), <-asked)
		})
	}
}

// Our SUB and DEALER talk to go-zeromq's PUB and ROUTER.
func TestAgainstAnotherLibrary(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pub, router := zmq4.NewPub(ctx), zmq4.NewRouter(ctx)
	defer pub.Close()
	defer router.Close()
	require.NoError(t, pub.Listen("tcp://127.0.0.1:0"))
	require.NoError(t, router.Listen("tcp://127.0.0.1:0"))
	dial := (&net.Dialer{}).DialContext
	cfg := testConn
	cfg.maxBytes = 1 << 20

	sub, err := dialZMQ(ctx, dial, pub.Addr().String(), typeSub, cfg)
	require.NoError(t, err)
	defer sub.close()
	require.NoError(t, sub.subscribe("kv@"))
	big := strings.Repeat("b", 100_000)
	stop := make(chan struct{})
	sent := make(chan struct{})
	go func() { // sends until the subscription has arrived
		defer close(sent)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = pub.SendMulti(zmq4.NewMsgFrom([]byte("other"), be64(1), []byte("no")))
			_ = pub.SendMulti(zmq4.NewMsgFrom([]byte("kv@w"), be64(2), []byte(big)))
		}
	}()
	frames, err := sub.receive(nil)
	close(stop)
	require.NoError(t, err)
	m, ok := parsePublished(frames)
	require.True(t, ok)
	require.Equal(t, uint64(2), m.seq)
	require.Equal(t, big, string(m.payload))
	sub.close()
	<-sent

	served := make(chan error, 1)
	go func() {
		ask, err := router.Recv()
		if err == nil {
			for _, n := range []uint64{3, 4, endOfReplay} {
				err = errors.Join(err, router.SendMulti(zmq4.NewMsgFrom(ask.Frames[0], nil, []byte("t"), be64(n), ask.Frames[2])))
			}
		}
		served <- err
	}()
	var got []uint64
	require.NoError(t, replay(ctx, dial, router.Addr().String(), 3, cfg, testLimits, func(m message) bool {
		got = append(got, m.seq)
		return string(m.payload) == string(be64(3))
	}))
	require.NoError(t, <-served)
	require.Equal(t, []uint64{3, 4}, got)
}

// FuzzHandshake checks that a greeting leads to a peer of the right kind or to an error.
func FuzzHandshake(f *testing.F) {
	greeting := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1}, make([]byte, 52)...)
	copy(greeting[12:], "NULL")
	ready := func(more []byte) []byte {
		return append(bytes.Clone(greeting), appendFrame(nil, flagCommand, append([]byte("\x05READY"), more...))...)
	}
	f.Add(ready(appendProperty(appendProperty(nil, "Identity", ""), "Socket-Type", "PUB")))
	f.Add(ready([]byte("\x0bSocket-Type\xff\xff\xff\xffPUB")))
	f.Add(greeting)
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newTestConn(b)
		if c.handshake(typeSub) == nil {
			require.GreaterOrEqual(t, len(b), greetingSize)
			require.Contains(t, string(b[greetingSize:]), "PUB")
		}
	})
}

// FuzzReceive checks that reading any bytes after the handshake neither panics nor takes
// more memory than allowed.
func FuzzReceive(f *testing.F) {
	f.Add(appendFrame(appendFrame(nil, flagMore, be64(1)), 0, []byte("p")))
	f.Add(appendFrame(nil, flagCommand, []byte("\x04PING\x00\x00x")))
	f.Add(append([]byte{flagLong}, be64(1<<62)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newTestConn(b)
		for {
			frames, err := c.receive(nil)
			total := 0
			for _, fr := range frames {
				total += len(fr)
			}
			require.LessOrEqual(t, total, testConn.maxBytes)
			require.LessOrEqual(t, len(frames), maxFrames)
			if err != nil {
				return
			}
			parsePublished(frames)
			parseReplayed(frames)
		}
	})
}
