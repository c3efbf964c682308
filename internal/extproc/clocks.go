package extproc

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/telemetry"
)

const (
	// clockOff is how far a proxy's clock may differ from ours. The first attempt of a
	// request reaches us within milliseconds, so the difference is that of the clocks.
	clockOff = 2 * time.Second

	// clocksMost bounds the hosts that are remembered; a proxy has one.
	clocksMost = 64
)

// clocks turns what a proxy says of when it received a request into the time of this
// process. A proxy whose clock is off is not believed: its requests count from when
// they reached us, their later attempts by the difference that its latest first
// attempt showed. Only hosts whose clock is off are remembered. Safe for concurrent
// use; the zero value has met nobody.
type clocks struct {
	some atomic.Bool // a host is remembered: without one no attempt takes the lock

	mu  sync.Mutex
	off map[string]clock // guarded by mu: by host, "" for a unix socket
}

type clock struct {
	ahead    time.Duration // ours less the proxy's
	requests int64
}

// received returns when the request of attempt reached the proxy at host, which says ms
// (Unix milliseconds); a request lives for most. Of a first attempt whose proxy is not believed, ahead is how far our
// clock is ahead of the proxy's, else 0; first reports that the host is a new one of these.
func (c *clocks) received(ms string, attempt int, host string, now time.Time, most time.Duration) (t time.Time, ahead time.Duration, first bool) {
	n, err := strconv.ParseInt(ms, 10, 64)
	if err != nil {
		return now, 0, false
	}
	said := time.UnixMilli(n)
	if attempt > 1 {
		if t = earlier(said.Add(c.ahead(host)), now); now.Sub(t) > most {
			t = now // no attempt is made so late
		}
		return t, 0, false
	}
	ahead = now.Sub(said)
	if ahead.Abs() <= clockOff {
		c.right(host)
		return earlier(said, now), 0, false
	}
	return now, ahead, c.wrong(host, ahead)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (c *clocks) ahead(host string) time.Duration {
	if !c.some.Load() {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.off[host].ahead
}

// right forgets a host whose clock has been set.
func (c *clocks) right(host string) {
	if !c.some.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.off, host)
	c.some.Store(len(c.off) > 0)
}

func (c *clocks) wrong(host string, ahead time.Duration) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.off[host]
	if !ok && len(c.off) >= clocksMost {
		return false
	}
	if c.off == nil {
		c.off = make(map[string]clock)
	}
	c.off[host] = clock{ahead: ahead, requests: known.requests + 1}
	c.some.Store(true)
	return !ok
}

// receipt is when the proxy received a request that has come, whose headers are h.
func (srv *Server) receipt(ctx context.Context, h *wire.Headers, now time.Time) time.Time {
	if h.Start == "" {
		return now
	}
	host := peerHost(ctx)
	t, ahead, first := srv.clocks.received(h.Start, h.Attempt(), host, now, srv.rules.MaxTimeout)
	if ahead != 0 {
		srv.cfg.Telemetry.ClockOff()
	}
	if first {
		srv.log.Warn("the clock of a proxy is off: its x-baton-start is not used, and deadlines count from when its requests reach this process; logged once for each proxy",
			slog.String(telemetry.KeyAddress, cmp.Or(host, "local")), slog.Duration(telemetry.KeyAhead, ahead))
	}
	return t
}

// peerHost is the address of whoever has opened the stream, without its port; "" for a
// unix socket, whose proxy has our own clock.
func peerHost(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return ""
	}
	return host
}

// ClockOff is a proxy whose clock differs from ours.
type ClockOff struct {
	Host     string        // "" for a unix socket
	Ahead    time.Duration // our time less the proxy's
	Requests int64         // whose start was not believed
}

// ClocksOff returns the proxies whose clock is off now, by host.
func (srv *Server) ClocksOff() []ClockOff {
	srv.clocks.mu.Lock()
	defer srv.clocks.mu.Unlock()
	var all []ClockOff
	for _, host := range slices.Sorted(maps.Keys(srv.clocks.off)) {
		c := srv.clocks.off[host]
		all = append(all, ClockOff{Host: host, Ahead: c.ahead, Requests: c.requests})
	}
	return all
}
