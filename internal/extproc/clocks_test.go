package extproc

import (
	"bytes"
	"log/slog"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/peer"

	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

func millis(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

func TestAClockThatIsOffIsNotBelieved(t *testing.T) {
	now := time.UnixMilli(1_900_000_000_000)
	var c clocks
	for name, ahead := range map[string]time.Duration{
		"the same": 0, "a queue's worth behind": 1500 * time.Millisecond, "at the limit": clockOff, "a little ahead": -time.Second,
	} {
		got, off, first := c.received(now.Add(-ahead), 1, "a", now, time.Hour)
		require.Equal(t, now.Add(-max(ahead, 0)), got, name)
		require.Zero(t, off, name)
		require.False(t, first, name)
	}
	require.False(t, c.some.Load(), "a host whose clock is right is not remembered")

	for _, behind := range []time.Duration{11 * time.Minute, 59 * time.Minute, 2001 * time.Millisecond, -time.Hour} {
		var c clocks
		start := now.Add(-behind)
		for i := range clockRequests + 2 {
			got, off, first := c.received(start, 1, "a", now, time.Hour)
			require.Equal(t, now, got)
			require.Equal(t, i >= clockRequests-1, off != 0)
			require.Equal(t, i == clockRequests-1, first, "told once")
			if off != 0 {
				require.Equal(t, behind, off)
			}
		}
		later := now.Add(3 * time.Second)
		got, _, _ := c.received(start, 2, "a", later, time.Hour)
		require.Equal(t, now, got, "a fresh attempt has no more time than the first")
		got, _, _ = c.received(now.Add(-time.Second), 2, "b", now, time.Hour)
		require.Equal(t, now.Add(-time.Second), got, "another proxy's clock is its own")

		_, off, _ := c.received(now, 1, "a", now, time.Hour)
		require.Zero(t, off, "the clock was set")
		require.False(t, c.some.Load())
	}
}

// A proxy that is short of CPU is late, by times that vary; one at a unix socket has our clock.
func TestALateProxyIsNotOneWithAWrongClock(t *testing.T) {
	now := time.UnixMilli(1_900_000_000_000)
	var c clocks
	for i := range 200 {
		late := 3*time.Second + time.Duration(i%7)*400*time.Millisecond
		_, off, first := c.received(now.Add(-late), 1, "a", now, time.Hour)
		require.Zero(t, off)
		require.False(t, first)
		got, off, first := c.received(now.Add(-late), 1, "", now, time.Hour)
		require.Equal(t, now.Add(-late), got, "it has waited so long already")
		require.Zero(t, off)
		require.False(t, first)
	}
	got, _, _ := c.received(time.UnixMilli(1), 1, "", now, time.Hour)
	require.Equal(t, now, got, "that cannot be right")
}

func TestClocksThatAreOffAreRememberedWithinABound(t *testing.T) {
	now := time.UnixMilli(1_900_000_000_000)
	var c clocks
	for i := range clocksMost + 10 {
		got, _, _ := c.received(time.UnixMilli(1), 1, strconv.Itoa(i), now, time.Hour)
		require.Equal(t, now, got)
	}
	require.Len(t, c.off, clocksMost)
}

func TestATimeThatIsNoNumberIsNotBelieved(t *testing.T) {
	r := newReplica(t, "a", nil)
	now := time.Now()
	for _, junk := range []string{"", "x", "1e3", "99999999999999999999"} {
		got, off := r.srv.receipt(t.Context(), &wire.Headers{Start: junk}, true, now)
		require.Equal(t, now, got, junk)
		require.Zero(t, off, junk)
	}
}

// TestAProxyWhoseClockIsBehindIsServed: it is eleven minutes behind, and requests have a
// deadline of ten.
func TestAProxyWhoseClockIsBehindIsServed(t *testing.T) {
	var logged bytes.Buffer
	r := newReplica(t, "a", func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&logged, nil)) })
	p := r.open(filterMain)
	for range clockRequests - 1 {
		r.srv.clocks.received(time.Now().Add(-11*time.Minute), 1, "127.0.0.1", time.Now(), time.Hour)
	}
	require.Empty(t, r.srv.ClocksOff())
	routed(t, p.ask(eightTokens, wire.HeaderAttemptCount, "1", prefill.HeaderStart, millis(time.Now().Add(-11*time.Minute))))
	off := r.srv.ClocksOff()
	require.Len(t, off, 1)
	require.InDelta(t, 11*time.Minute, off[0].Ahead, float64(time.Minute))
	require.Equal(t, "127.0.0.1", off[0].Host)
	require.EqualValues(t, clockRequests, off[0].Requests)
	require.Contains(t, logged.String(), "the clock of a proxy is off")
	p.cancel()
	r.forgetLegs()
	r.requireIdle()
}

// TestTimesAreOfOneClock: the access log has the proxy's.
func TestTimesAreOfOneClock(t *testing.T) {
	r := newReplica(t, "a", nil)
	at := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}})
	for _, off := range []time.Duration{0, 11 * time.Minute, -11 * time.Minute, -time.Second} {
		began := time.Now()
		proxys := began.Add(-off)
		s := &mainStream{}
		s.m.Request().Start, s.asked.ahead = r.srv.receipt(at, &wire.Headers{Start: millis(proxys)}, true, began)
		require.Contains(t, s.m.Request().Start.String(), " m=", "a deadline outlives a step of the system's clock")
		s.answered.sent = sent{start: proxys, last: 3 * time.Second}
		var served telemetry.Served
		s.clock(&served, began, false)
		require.InDelta(t, 3*time.Second, served.Whole, float64(2*time.Millisecond), off)
	}
}
