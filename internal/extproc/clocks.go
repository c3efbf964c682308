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
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

const (
	// clockOff is how far a proxy's clock may differ from ours. The first attempt of a
	// request reaches this process within milliseconds, so a larger difference is that of
	// the clocks.
	clockOff = 2 * time.Second

	// clocksMost bounds the hosts that are kept. Each proxy has one host.
	clocksMost = 64
)

// clocks converts the time at which a proxy says it received a request into time of this
// process. If the proxy's clock is off, that time is not used: a first attempt counts from
// when it reached this process, and the time of a later attempt is corrected by the
// difference that the latest first attempt from this proxy showed. Only hosts whose clock
// is off are kept. The zero value is ready. Safe for concurrent use.
type clocks struct {
	some atomic.Bool // off is not empty; if it is empty, no attempt needs the lock

	mu  sync.Mutex
	off map[string]clock // guarded by mu: by host, "" for a unix socket
}

type clock struct {
	ahead    time.Duration // our time less the proxy's
	requests int64         // first attempts that have shown that the clock is off
}

// received returns when a request reached the proxy at host, in time of this process. The
// proxy says ms (Unix milliseconds); attempt is the number of the attempt; no request lasts
// longer than most. If a first attempt shows that the proxy's clock is off, ahead is how far
// our clock is ahead of the proxy's; otherwise it is 0. first is true if the host has now
// been added to those whose clock is off.
func (c *clocks) received(ms string, attempt int, host string, now time.Time, most time.Duration) (t time.Time, ahead time.Duration, first bool) {
	n, err := strconv.ParseInt(ms, 10, 64)
	if err != nil {
		return now, 0, false
	}
	said := time.UnixMilli(n)
	if attempt > 1 {
		t = earlier(said.Add(c.ahead(host)), now)
		if now.Sub(t) > most {
			t = now // cannot be right: no attempt is made so late
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

// right removes a host, whose clock is no longer off.
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

// receipt returns when the proxy received the request with the headers h, in time of this
// process.
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
		srv.log.Warn("the clock of a proxy is off: set that clock; until then its x-baton-start is not used, and deadlines count from when its requests reach this process; logged once for each proxy",
			slog.String(logkey.Address, cmp.Or(host, "local")), slog.Duration(logkey.Ahead, ahead))
	}
	return t
}

// peerHost returns the address of the proxy that has opened the stream, without the port.
// It returns "" for a unix socket: that proxy is on this host, and has the same clock.
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
	Requests int64         // requests whose x-baton-start was not used
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
