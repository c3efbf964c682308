package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/hour"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Config configures a [Server].
type Config struct {
	// Address to listen on, "ip:port" or "localhost:port"; port 0 means any. Any client that
	// can reach it can read everything except prompts, which are not kept.
	Address string

	// AllowedHosts are the names, without port, that a Host header may carry besides
	// loopback names: the names by which people reach the page.
	AllowedHosts []string

	// State returns what the page shows. Required; safe for concurrent use.
	State func() State

	// Ready answers /readyz. reason says why it is not ready. Required; safe for concurrent use.
	Ready func() (ready bool, reason string)

	// ReadyKey answers /readyz?model=…&namespace=…. Required; safe for concurrent use.
	ReadyKey func(k worker.Key) (ready bool, reason string)

	// Trouble returns what was wrong at the latest look, for /readyz and explain, worst first.
	// Optional; safe for concurrent use.
	Trouble func() []trouble.Trouble

	// Hour returns the last hour in spans of as many steps, oldest first. With nil the page
	// has no pictures, and /debug/hour is 404. Safe for concurrent use.
	Hour func(now time.Time, steps int) []hour.Span

	// Journal holds the decisions; with nil none are shown.
	Journal *journal.Journal

	// Metrics serves /metrics; with nil the answer is 404.
	Metrics http.Handler

	// Explain decides a request without routing it: nothing is booked and no cursor
	// moves. Its result is shown as JSON; a *decision.Record has the form of
	// /debug/decisions. With nil the answer is 404. Safe for concurrent use.
	Explain func(ctx context.Context, path string, body []byte) (any, error)

	// Index says how much of a prompt each rank holds. An error is about the query. With
	// nil the answer is 404. Safe for concurrent use.
	Index func(q IndexQuery) (IndexAnswer, error)

	// IndexDump writes a dump of the index. With nil the answer is 404. Safe for
	// concurrent use.
	IndexDump func(w io.Writer) error

	// Pprof serves /debug/pprof/. A profile costs CPU while it is taken.
	Pprof bool

	// Logger gets panics and broken connections; nil means no log.
	Logger *slog.Logger
}

// Validate returns every fault, joined, or nil.
func (c Config) Validate() error {
	var errs []error
	if _, _, err := net.SplitHostPort(c.Address); err != nil {
		errs = append(errs, fmt.Errorf("admin address %q: expected ip:port", c.Address))
	}
	for _, h := range c.AllowedHosts {
		if h == "" || strings.ContainsAny(h, ":/ ") {
			errs = append(errs, fmt.Errorf("admin allowed host %q: expected a name without port", h))
		}
	}
	if c.State == nil || c.Ready == nil || c.ReadyKey == nil {
		errs = append(errs, errors.New("admin: a function that is required is missing"))
	}
	return errors.Join(errs...)
}

// hostRule says which Host headers are answered.
type hostRule struct {
	names      map[string]bool
	anyLiteral bool // the listener is not on loopback
}

func newHostRule(names []string, listen net.Addr) hostRule {
	r := hostRule{names: make(map[string]bool, len(names))}
	for _, n := range names {
		r.names[strings.ToLower(strings.TrimSuffix(n, "."))] = true
	}
	a, err := netip.ParseAddrPort(listen.String())
	r.anyLiteral = err == nil && !a.Addr().IsLoopback()
	return r
}

func (r hostRule) allows(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if a, err := netip.ParseAddr(host); err == nil {
		return r.anyLiteral || a.IsLoopback()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || r.names[host]
}
