package kvevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Config configures a [Subscriber]. Only Index is required; the zero value of
// all else is the documented default.
type Config struct {
	// Index is fed with the events. The subscriber attaches and detaches ranks
	// in it; nobody else may write to it, but for routes, and to detach a rank
	// whose worker has left before Update is told that it is back.
	Index kvindex.Index

	// Logger gets the changes of state. Nil: none.
	Logger *slog.Logger
	// Hooks are called as things happen.
	Hooks Hooks
	// Dial opens connections. Nil: TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Bind are addresses, host:port, where the subscriber listens for
	// publishers that dial instead of being dialed. Only for workers that name
	// no address of their own; see bind.go for how they are recognized. Whoever
	// reaches the address may say what a worker holds: keep it in a private
	// network.
	Bind []string
	// PlaneZMQ are addresses, host:port, of publishers or brokers of a Dynamo
	// event plane.
	PlaneZMQ []string
	// Channels are further ways into a Dynamo event plane. With either, the
	// events of workers that name no address of their own are taken from it.
	Channels []Channel

	// MinBackoff is the wait before the first new attempt to connect, doubled
	// to MaxBackoff; each wait is cut by a random part of up to a half.
	// Defaults 50 ms and 2 s.
	MinBackoff, MaxBackoff time.Duration
	// Timeout bounds dial and handshake together, and the silence of a replay.
	// Default 5 s. Lower finds broken replays sooner and gives up slow ones.
	Timeout time.Duration
	// Heartbeat is the time between PINGs; after three without a sign of life
	// the connection is given up. Default 5 s. Only for peers that know them
	// (ZMTP 3.1: libzmq from 4.2).
	Heartbeat time.Duration
	// Audit is how long a publisher is quiet before it is asked for its last message
	// once more, which proves that it is the same publisher. Default 30 s. Each
	// audit is one short connection.
	Audit time.Duration
	// Check is how long a publisher with a replay port is quiet before it is asked
	// whether it has sent more than was heard, and how often from then on. Default
	// 1.5 s. Lower finds a loss sooner; a check is a few bytes each way, on a
	// connection that is kept.
	Check time.Duration
	// ReplayAttempts is how often a replay is tried. Default 3.
	ReplayAttempts int
	// ReplayFor bounds how long one replay may go on. Default 2 min. What goes on for
	// longer, or brings more than MaxReplayBytes or 262,144 messages, or messages
	// out of order, has no end: the rank is degraded, and the publisher is asked for
	// none any more until it is connected anew.
	ReplayFor time.Duration
	// Keep is how long after it was copied what an earlier process held of a rank
	// may still be taken; see Resume. Default 15 min. Longer helps workers that
	// are quiet or away for long, and holds the dump in memory until then where
	// one of them is waited for.
	Keep time.Duration

	// MaxMessageBytes bounds one message. Default 16 MiB. A larger one ends
	// the connection.
	MaxMessageBytes int
	// MaxBufferedBytes bounds, for each rank, what is kept while a replay
	// runs; beyond it the replay is given up. Default 64 MiB.
	MaxBufferedBytes int
	// MaxReplayBytes bounds the payloads of one replay. Default 1 GiB. They are
	// applied as they come: it bounds the work that a publisher can make.
	MaxReplayBytes int
}

// Hooks observe a Subscriber, for counters. Each may be nil. They are called by
// the goroutines of a rank, several at once, and must not block.
type Hooks struct {
	// Applied: one message was decoded and applied, with so many events and
	// stored or removed blocks.
	Applied func(r worker.Rank, events, blocks int)
	// Wrote: a rank told of so many blocks, each in an event of its own, that extend a
	// chain on the device: what a running answer does, where the engine tells of each
	// block when it is full. It is called once for the messages that are applied
	// together, up to 64 or some 1 MiB where they wait. live says that all of them came as they were
	// sent, and that nothing is known to be missing; else some were replayed or held
	// back, or what was published is lost.
	Wrote func(r worker.Rank, blocks int, live bool)
	// Refused: n events were not used. The zero rank stands for none that is
	// known.
	Refused func(r worker.Rank, why Reason, n uint64)
	// Gap: messages of a rank were found missing.
	Gap func(r worker.Rank)
	// Replayed: a replay ended well (ok) or was given up.
	Replayed func(r worker.Rank, ok bool)
	// Restored: so many blocks of the rank, which an earlier process held, were
	// taken into the index.
	Restored func(r worker.Rank, blocks int)
	// Reset: the rank's blocks were dropped.
	Reset func(r worker.Rank, why Cause)
	// State: the rank's state changed.
	State func(r worker.Rank, s State)
}

func (h *Hooks) applied(r worker.Rank, events, blocks int) {
	if h.Applied != nil {
		h.Applied(r, events, blocks)
	}
}

func (h *Hooks) wrote(r worker.Rank, blocks int, live bool) {
	if h.Wrote != nil {
		h.Wrote(r, blocks, live)
	}
}

func (h *Hooks) refused(r worker.Rank, why Reason, n uint64) {
	if h.Refused != nil {
		h.Refused(r, why, n)
	}
}

func (h *Hooks) gap(r worker.Rank) {
	if h.Gap != nil {
		h.Gap(r)
	}
}

func (h *Hooks) replayed(r worker.Rank, ok bool) {
	if h.Replayed != nil {
		h.Replayed(r, ok)
	}
}

func (h *Hooks) restored(r worker.Rank, blocks int) {
	if h.Restored != nil {
		h.Restored(r, blocks)
	}
}

func (h *Hooks) reset(r worker.Rank, why Cause) {
	if h.Reset != nil {
		h.Reset(r, why)
	}
}

func (h *Hooks) state(r worker.Rank, s State) {
	if h.State != nil {
		h.State(r, s)
	}
}

// conn is what a connection is opened with.
func (c *Config) conn() connConfig {
	return connConfig{maxBytes: c.MaxMessageBytes, heartbeat: c.Heartbeat, timeout: c.Timeout}
}

// plane reports whether there is a way into an event plane.
func (c *Config) plane() bool { return len(c.PlaneZMQ)+len(c.Channels) > 0 }

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.MinBackoff, 50*time.Millisecond)
	def(&c.MaxBackoff, 2*time.Second)
	def(&c.Timeout, 5*time.Second)
	def(&c.Heartbeat, 5*time.Second)
	def(&c.Audit, 30*time.Second)
	def(&c.Check, 1500*time.Millisecond)
	def(&c.ReplayFor, 2*time.Minute)
	def(&c.Keep, 15*time.Minute)
	if c.ReplayAttempts == 0 {
		c.ReplayAttempts = 3
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = 16 << 20
	}
	if c.MaxBufferedBytes == 0 {
		c.MaxBufferedBytes = 64 << 20
	}
	if c.MaxReplayBytes == 0 {
		c.MaxReplayBytes = 1 << 30
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	return c
}

// Validate returns every fault of the configuration, joined, or nil. Zero
// values are valid: they mean the default.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf("kvevents: "+format, a...)) }
	if c.Index == nil {
		bad("index: expected one")
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{
		{"min backoff", c.MinBackoff}, {"max backoff", c.MaxBackoff}, {"timeout", c.Timeout},
		{"heartbeat", c.Heartbeat}, {"audit", c.Audit}, {"check", c.Check}, {"replay for", c.ReplayFor}, {"keep", c.Keep},
	} {
		if d.v < 0 {
			bad("%s %s: expected above 0", d.name, d.v)
		}
	}
	if full := c.withDefaults(); full.MinBackoff > full.MaxBackoff {
		bad("min backoff %s: expected at most the max backoff, %s", full.MinBackoff, full.MaxBackoff)
	}
	for _, addrs := range [][]string{c.Bind, c.PlaneZMQ} {
		for _, a := range addrs {
			if _, port, err := net.SplitHostPort(a); err != nil || port == "" {
				bad("address %q: expected host:port", a)
			}
		}
	}
	if len(c.Bind) > 0 && c.plane() {
		bad("bind %q and an event plane: expected one of them: both would tell of the same workers", c.Bind)
	}
	for _, n := range []struct {
		name string
		v    int
	}{
		{"replay attempts", c.ReplayAttempts}, {"max message bytes", c.MaxMessageBytes},
		{"max buffered bytes", c.MaxBufferedBytes}, {"max replay bytes", c.MaxReplayBytes},
	} {
		if n.v < 0 {
			bad("%s %d: expected above 0", n.name, n.v)
		}
	}
	return errors.Join(errs...)
}
