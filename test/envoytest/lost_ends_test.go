//go:build e2e

package envoytest

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// cable carries the connections to a socket, until it is cut.
type cable struct {
	t  *testing.T
	at string
	to func() string // the socket

	mu     sync.Mutex
	ends   []net.Conn   // guarded by mu
	drops  bool         // guarded by mu: what comes from Envoy is lost
	passed bytes.Buffer // guarded by mu
	lost   bytes.Buffer // guarded by mu
}

func newCable(t *testing.T, at string, to func() string) *cable {
	l, err := net.Listen("unix", at)
	require.NoError(t, err)
	c := &cable{t: t, at: at, to: to}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { c.carry(from) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.cut()
		wg.Wait()
	})
	return c
}

func (c *cable) carry(from net.Conn) {
	defer from.Close()
	there, err := net.Dial("unix", c.to())
	if err != nil {
		return
	}
	defer there.Close()
	c.mu.Lock()
	c.ends = append(c.ends, from, there)
	c.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(from, there)
		_ = from.Close()
	})
	defer back.Wait()
	defer there.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		c.mu.Lock()
		drops := c.drops
		if drops {
			c.lost.Write(buf[:n])
		} else {
			c.passed.Write(buf[:n])
		}
		c.mu.Unlock()
		if !drops {
			if _, err := there.Write(buf[:n]); err != nil {
				return
			}
		}
	}
}

// drop loses what comes from Envoy from now on, until cut.
func (c *cable) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drops = true
}

// cut breaks all connections. Later ones are carried.
func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.ends {
		_ = e.Close()
	}
	c.ends, c.drops = nil, false
}

// hasPassed and hasLost report whether the text has come from Envoy, timesPassed how often.
func (c *cable) hasPassed(text string) bool { return c.timesPassed(text) > 0 }

func (c *cable) timesPassed(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Count(c.passed.Bytes(), []byte(text))
}

func (c *cable) hasLost(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.lost.Bytes(), []byte(text))
}

// What the first message of each log has of its name (Identifier.log_name).
const (
	nameOfEnds = "\x12\x05baton"
	nameOfRuns = "\x12\x0dbaton_running"
)

// toPlugin matches where Envoy's configuration says to which cluster an access log goes.
var toPlugin = regexp.MustCompile(`(log_name: baton\w*\s+transport_api_version: V3\s+grpc_service: \{envoy_grpc: \{cluster_name: )extproc\}`)

// ofLog has Envoy's access log go through a cable.
func ofLog(l layout) (layout, func() *cable) {
	var c *cable
	l.describe = func(f *fleet) {
		c = newCable(f.t, filepath.Join(f.dir, "log.sock"), func() string { return f.plugin.Socket })
	}
	l.patch = func(config string) string {
		const of = "  - name: main_leg\n    type: STATIC\n"
		require.Len(c.t, toPlugin.FindAllString(config, -1), 2)
		require.Equal(c.t, 1, strings.Count(config, of))
		return strings.Replace(toPlugin.ReplaceAllString(config, "${1}log}"), of, `  - name: log
    type: STATIC
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: log
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: "`+c.at+`"}}}}]}]
`+of, 1)
	}
	return l, func() *cable { return c }
}

// awaitLong is await for what takes longer than that by design.
func (f *fleet) awaitLong(what string, ok func() bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(f.t, stack.Await(ctx, what, ok))
}

// twoRunning begins two answers, one at each of the two decode workers, and waits until the
// access log has told that they run.
func twoRunning(f *fleet, c *cable) (replies [2]chan *reply) {
	f.faultAll(f.decode, enginesim.Fault{Mode: enginesim.FaultHold, When: enginesim.Mid})
	for i := range replies {
		replies[i] = make(chan *reply, 1)
		go func() {
			replies[i] <- f.send(context.Background(), "/v1/completions", completion(twoPrompts[i], 8, true))
		}()
		f.await("it to run", func() bool { return f.received(f.decode[0])+f.received(f.decode[1]) == uint64(i+1) })
	}
	f.await("streams on which nothing depends to be left", func() bool {
		return f.metric("baton_streams_in_flight", `leg="prefill"`) == 0 && (!f.fullDuplex || f.metric("baton_streams_in_flight", `leg="main"`) == 0)
	})
	// Its first message begins with all that Envoy has to say of itself: it is whole once a later one has begun.
	f.awaitLong("the log to tell that they run", func() bool { return c.hasPassed(nameOfRuns) && c.timesPassed("x-attempt-id") > len(replies) })
	require.EqualValues(f.t, 2, f.metric("baton_worker_decode_requests"))
	return replies
}

var twoPrompts = [2]string{"the first of two", "the other one"}

// TestABrokenLogKeepsNoBookingOfAnAnswerThatIsOver: the end of one answer is lost with the
// connection of Envoy's access log. Its booking ends soon, and no worker is charged. The
// other answer still runs, and stays booked to its end.
func TestABrokenLogKeepsNoBookingOfAnAnswerThatIsOver(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 2, config: "tokens: {mode: estimate}\n" + modes("round-robin", "round-robin")}
	bodyModes(t, l, func(t *testing.T, l layout) {
		l, wire := ofLog(l)
		f := newFleet(t, l)
		c := wire()
		replies := twoRunning(f, c)
		over := 0 // the worker of the first answer
		if !strings.Contains(f.got(f.decode[0])[0].Body, twoPrompts[0]) {
			over = 1
		}
		c.drop()
		f.fault(f.decode[over], enginesim.Fault{})
		requireAnswer(t, <-replies[0], twoPrompts[0], 8)
		f.awaitLong("its end to be lost", func() bool { return c.hasLost(nameOfEnds) })
		c.cut()
		f.awaitLong("its booking to end", func() bool {
			return f.metric("baton_worker_decode_requests") == 1 && f.metric("baton_requests_total", `outcome="unfinished"`) == 1
		})
		require.Positive(t, f.metric("baton_access_log_breaks_total"))
		require.Zero(t, f.metric("baton_requests_total", `outcome="ok"`))
		f.fault(f.decode[1-over], enginesim.Fault{})
		requireAnswer(t, <-replies[1], twoPrompts[1], 8)
		f.await("its end to be told", func() bool {
			return f.metric("baton_worker_decode_requests") == 0 && f.metric("baton_requests_total", `outcome="ok"`) == 1
		})
		require.EqualValues(t, 1, f.metric("baton_requests_total", `outcome="unfinished"`))
	})
}

// TestTheAnswersOfAnEnvoyThatIsKilledAreOver: nobody tells of their ends, and their bookings
// end all the same.
func TestTheAnswersOfAnEnvoyThatIsKilledAreOver(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 2, config: "tokens: {mode: estimate}\n" + modes("round-robin", "round-robin"), noCheck: true}
	bodyModes(t, l, func(t *testing.T, l layout) {
		l, wire := ofLog(l)
		f := newFleet(t, l)
		replies := twoRunning(f, wire())
		require.NoError(t, f.envoy.Kill())
		for i := range replies {
			require.Error(t, (<-replies[i]).err)
		}
		f.awaitLong("their bookings to end", func() bool {
			return f.metric("baton_worker_decode_requests") == 0 && f.metric("baton_requests_total", `outcome="unfinished"`) == 2
		})
	})
}
