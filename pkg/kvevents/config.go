package kvevents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Config configures a [Subscriber]. Only Index is required. The zero value of every other
// field means the documented default.
type Config struct {
	// Index gets the events. The subscriber attaches and detaches ranks in it. Others may
	// only record routes in it, and detach a rank whose worker has left, before Update is
	// given a snapshot that has the worker again.
	Index kvindex.Index

	// Logger logs changes of state. Nil: no logs.
	Logger *slog.Logger
	// Hooks are called as things happen; see [Hooks].
	Hooks Hooks
	// Dial opens connections. Nil: TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Bind are addresses, host:port, where the subscriber listens for publishers that
	// dial. Only workers that name no address of their own are followed in this way;
	// bind.go says how they are recognized. Any peer that reaches the address can claim
	// what a worker holds: keep it in a private network.
	Bind []string
	// PlaneZMQ are addresses, host:port, of publishers or brokers of a Dynamo event
	// plane. The plane's events are used for workers that name no address of their own.
	PlaneZMQ []string
	// Channels are further connections to a Dynamo event plane.
	Channels []Channel

	// MinBackoff is the wait before the first new attempt to connect. It doubles with
	// each attempt, up to MaxBackoff. A random part, at most half, is taken off each
	// wait. Defaults 50 ms and 2 s.
	MinBackoff, MaxBackoff time.Duration
	// Timeout bounds dial and handshake together, and the silence of a replay. Default 5
	// s. A lower value finds broken replays sooner and gives up slow ones.
	Timeout time.Duration
	// Heartbeat is the time between PINGs. After three of them without a byte from the
	// peer the connection is given up. Default 5 s. Only for peers that know PING (ZMTP
	// 3.1: libzmq from 4.2).
	Heartbeat time.Duration
	// Audit is the quiet time after which a publisher is asked for its last message once
	// more, to prove that it is still the same publisher. Default 30 s. Each audit opens
	// a short connection.
	Audit time.Duration
	// Check is the quiet time after which a publisher with a replay port is asked whether
	// it has sent more than was heard, and the time between such questions. Default 1.5
	// s. A lower value finds a loss sooner. A check sends a few bytes each way, on a
	// connection that stays open.
	Check time.Duration
	// ReplayAttempts is how often a replay is tried before it counts as failed. Default
	// 3.
	ReplayAttempts int
	// ReplayFor bounds the time of one replay. Default 2 min. A replay counts as endless
	// if it takes longer, or brings more than MaxReplayBytes, more than 262,144 messages,
	// or messages out of order. The rank is then degraded, and its publisher is not asked
	// for replays until the next connection.
	ReplayFor time.Duration
	// Keep is the age, counted from the copy, up to which a rank's blocks of an earlier
	// process may still be taken; see Resume. Default 15 min. A larger value helps
	// workers that are quiet or away for long. The dump stays in memory until then if one
	// of its ranks is waited for.
	Keep time.Duration

	// MaxMessageBytes bounds one message. Default 16 MiB. A larger message ends the
	// connection.
	MaxMessageBytes int
	// MaxBufferedBytes bounds, for each rank, the messages that are kept during a replay.
	// Beyond it the replay is given up. Default 64 MiB.
	MaxBufferedBytes int
	// MaxReplayBytes bounds the payloads of one replay. Default 1 GiB. The payloads are
	// applied as they come, so this bounds the work that a publisher can cause, not
	// memory.
	MaxReplayBytes int
}

// Hooks observe a Subscriber, to count what happens. Each may be nil. The goroutines of
// the ranks call them, several at once, so they must not block.
type Hooks struct {
	// Applied: one message was decoded and applied. It had so many events, which stored
	// or removed so many blocks.
	Applied func(r worker.Rank, events, blocks int)
	// Wrote: the rank announced so many blocks on the device that extend a chain, each in
	// an event of its own. A running answer causes such events if the engine announces
	// each block when it is full. The hook is called once for messages that are applied
	// together, at most 64 or about 1 MiB of them. live says that all of them came as
	// they were sent and that nothing is known to be missing. False means that some were
	// replayed or held back, or that messages were lost.
	Wrote func(r worker.Rank, blocks int, live bool)
	// Refused: n events were not used. The zero rank means that the rank is unknown.
	Refused func(r worker.Rank, why Reason, n uint64)
	// Gap: messages of a rank were found missing.
	Gap func(r worker.Rank)
	// Replayed: a replay ended well (ok) or was given up.
	Replayed func(r worker.Rank, ok bool)
	// Restored: so many blocks of the rank that an earlier process held were taken into
	// the index.
	Restored func(r worker.Rank, blocks int)
	// Reset: the rank's blocks were dropped.
	Reset func(r worker.Rank, why Cause)
	// State: the rank's state changed.
	State func(r worker.Rank, s State)
}

// withDefaults returns h with a function that does nothing for each that is missing.
func (h Hooks) withDefaults() Hooks {
	if h.Applied == nil {
		h.Applied = func(worker.Rank, int, int) {}
	}
	if h.Wrote == nil {
		h.Wrote = func(worker.Rank, int, bool) {}
	}
	if h.Refused == nil {
		h.Refused = func(worker.Rank, Reason, uint64) {}
	}
	if h.Gap == nil {
		h.Gap = func(worker.Rank) {}
	}
	if h.Replayed == nil {
		h.Replayed = func(worker.Rank, bool) {}
	}
	if h.Restored == nil {
		h.Restored = func(worker.Rank, int) {}
	}
	if h.Reset == nil {
		h.Reset = func(worker.Rank, Cause) {}
	}
	if h.State == nil {
		h.State = func(worker.Rank, State) {}
	}
	return h
}

// conn returns the settings of a connection.
func (c *Config) conn() connConfig {
	return connConfig{maxBytes: c.MaxMessageBytes, heartbeat: c.Heartbeat, timeout: c.Timeout}
}

// plane reports whether an event plane is configured.
func (c *Config) plane() bool { return len(c.PlaneZMQ)+len(c.Channels) > 0 }

func (c Config) withDefaults() Config {
	c.MinBackoff = cmp.Or(c.MinBackoff, 50*time.Millisecond)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 2*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, 5*time.Second)
	c.Audit = cmp.Or(c.Audit, 30*time.Second)
	c.Check = cmp.Or(c.Check, 1500*time.Millisecond)
	c.ReplayFor = cmp.Or(c.ReplayFor, 2*time.Minute)
	c.Keep = cmp.Or(c.Keep, 15*time.Minute)
	c.ReplayAttempts = cmp.Or(c.ReplayAttempts, 3)
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, 16<<20)
	c.MaxBufferedBytes = cmp.Or(c.MaxBufferedBytes, 64<<20)
	c.MaxReplayBytes = cmp.Or(c.MaxReplayBytes, 1<<30)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Hooks = c.Hooks.withDefaults()
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	return c
}

// Validate returns all faults of the configuration, joined, or nil. Zero values are
// valid: they mean the default.
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

// reconnect connects again and again until ctx ends. connect returns why a connection has
// ended; failed is told. The pauses double, up to MaxBackoff; after a connection that
// lasted for a while, so that the peer is not broken, they begin anew.
func (c *Config) reconnect(ctx context.Context, connect func() error, failed func(error)) {
	backoff := c.MinBackoff
	for {
		began := time.Now()
		err := connect()
		if ctx.Err() != nil {
			return
		}
		failed(err)
		if time.Since(began) > c.MaxBackoff {
			backoff = c.MinBackoff
		}
		if !sleep(ctx, backoff-rand.N(backoff/2+1)) {
			return
		}
		backoff = min(2*backoff, c.MaxBackoff)
	}
}
