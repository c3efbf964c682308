package extproc

import (
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

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/internal/wire"
)

const (
	// clockOff is how late the first attempt of a request may reach this process, or how far
	// a proxy's clock may differ from ours: with a larger difference the proxy's time is not
	// used.
	clockOff = 2 * time.Second

	// A proxy that is short of CPU is late by times that vary. So its clock is said to be off
	// only once so many requests in a row have differed by the same, within clockSteady.
	clockSteady   = time.Second
	clockRequests = 20

	// clocksMost bounds the hosts that are kept. Each proxy has one host.
	clocksMost = 64
)

// clocks converts the time at which a proxy says it received a request into time of this
// process. If the proxy's clock may be off, that time is not used: a first attempt counts from
// when it reached this process, and the time of a later attempt is corrected by the
// difference that the latest first attempt from this proxy showed. Only hosts whose clock
// may be off are kept. A proxy at a unix socket has the clock of this process. The zero value
// is ready. Safe for concurrent use.
type clocks struct {
	some atomic.Bool // off is not empty; if it is empty, no attempt needs the lock

	mu  sync.Mutex
	off map[string]clock // guarded by mu: by host
}

type clock struct {
	ahead       time.Duration // our time less the proxy's
	least, most time.Duration // the same, since it has held steady
	requests    int64         // first attempts by then
}

func (c *clock) steady() bool { return c.requests >= clockRequests }

// received returns when a request reached the proxy at host, in time of this process. The
// proxy says that it did at said; attempt is the number of the attempt; no request lasts
// longer than most. If it is known that the proxy's clock is off, ahead is how far our clock is
// ahead of the proxy's; otherwise it is 0. first is true if it has not been known before.
func (c *clocks) received(said time.Time, attempt int, host string, now time.Time, most time.Duration) (t time.Time, ahead time.Duration, first bool) {
	said = now.Add(said.Sub(now)) // on the monotonic clock, as now is: a deadline outlives a step of the system's clock
	if host == "" && now.Sub(said) <= most {
		return earlier(said, now), 0, false
	}
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
	known, first := c.wrong(host, ahead)
	if !known {
		ahead = 0
	}
	return now, ahead, first
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

// wrong takes a difference that is too large, and returns whether it is known now that the
// clock is off, and whether that is new.
func (c *clocks) wrong(host string, ahead time.Duration) (known, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, ok := c.off[host]
	if !ok && len(c.off) >= clocksMost {
		return false, false
	}
	if c.off == nil {
		c.off = make(map[string]clock)
	}
	least, most := min(x.least, ahead), max(x.most, ahead)
	if !ok || most-least > clockSteady {
		x, least, most = clock{}, ahead, ahead
	}
	x = clock{ahead, least, most, x.requests + 1}
	c.off[host] = x
	c.some.Store(true)
	return x.steady(), x.requests == clockRequests
}

// receipt returns when the proxy received the request with the headers h, in time of this
// process, and how far that is ahead of what the proxy says. Where the filter is not ours, a client may have set
// that header.
func (srv *Server) receipt(ctx context.Context, h *wire.Headers, ours bool, now time.Time) (t time.Time, ahead time.Duration) {
	ms, err := strconv.ParseInt(h.Start, 10, 64)
	if err != nil {
		return now, 0
	}
	said, host := time.UnixMilli(ms), peerHost(ctx)
	if host == "" && !ours {
		host = "local"
	}
	t, off, first := srv.clocks.received(said, h.Attempt(), host, now, srv.rules.MaxTimeout)
	if off != 0 {
		srv.cfg.Telemetry.ClockOff()
	}
	if first {
		srv.log.Warn("the clock of a proxy is off: set that clock; until then its x-baton-start is not used, and deadlines count from when its requests reach this process; logged once for each proxy",
			slog.String(logkey.Address, host), slog.Duration(logkey.Ahead, off))
	}
	return t, t.Sub(said)
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
	Host     string
	Ahead    time.Duration // our time less the proxy's
	Requests int64         // requests whose x-baton-start was not used
}

// ClocksOff returns the proxies whose clock is off now, by host.
func (srv *Server) ClocksOff() []ClockOff {
	srv.clocks.mu.Lock()
	defer srv.clocks.mu.Unlock()
	var all []ClockOff
	for _, host := range slices.Sorted(maps.Keys(srv.clocks.off)) {
		if c := srv.clocks.off[host]; c.steady() {
			all = append(all, ClockOff{Host: host, Ahead: c.ahead, Requests: c.requests})
		}
	}
	return all
}
