package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/seed-60ae5743/baton/pkg/kvevents"
)

// DefaultSubject matches the KV events of every component. The plane's subjects are
// namespace.<ns>.component.<c>.endpoint.<e>.kv-events.
const DefaultSubject = "namespace.*.component.*.endpoint.*.kv-events"

var errDisconnected = errors.New("connection lost")

// Config configures a [Channel]. Only URL is required.
type Config struct {
	// URL is nats://host:port or tls://host:port, or several, separated by commas. It
	// must not name a user, since pages and logs show it.
	URL string
	// Username and Password are for a server that requires them.
	Username, Password string
	// PasswordFile names a file that holds the password, in place of Password. It is read
	// again for each connection, so that the password can be changed while the channel is
	// in use. A line end after the password is ignored.
	PasswordFile string
	// Subject is the subject of the subscription. Default [DefaultSubject].
	Subject string
	// Timeout bounds the time to connect and to subscribe. Default 5 s.
	Timeout time.Duration
	// ReconnectWait is the time between two attempts to connect. Default 1 s.
	ReconnectWait time.Duration
	// MaxBufferedBytes bounds the messages that have arrived and wait for the sink.
	// Further ones are lost. Default 64 MiB.
	MaxBufferedBytes int
}

func (c Config) withDefaults() Config {
	c.Subject = cmp.Or(c.Subject, DefaultSubject)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.ReconnectWait = cmp.Or(c.ReconnectWait, time.Second)
	c.MaxBufferedBytes = cmp.Or(c.MaxBufferedBytes, 64<<20)
	return c
}

// Validate returns all faults of the configuration, joined, or nil.
func (c Config) Validate() error {
	var errs []error
	for s := range strings.SplitSeq(c.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(s))
		if err != nil || u.Host == "" || u.User != nil || u.Scheme != "nats" && u.Scheme != "tls" {
			// NB: the error must not contain the URL, which may hold a password.
			errs = append(errs, errors.New("nats: url: expected nats://host:port or tls://host:port, and no user"))
		}
	}
	if strings.ContainsAny(c.Subject, " \t\r\n") || c.Subject != "" && strings.Contains("."+c.Subject+".", "..") {
		errs = append(errs, fmt.Errorf("nats: subject %q: expected tokens separated by dots", c.Subject))
	}
	if c.Timeout < 0 || c.ReconnectWait < 0 || c.MaxBufferedBytes < 0 {
		errs = append(errs, errors.New("nats: timeout, reconnect wait and max buffered bytes: expected above 0"))
	}
	return errors.Join(errs...)
}

// password returns the present password.
func (c Config) password() (string, error) {
	if c.PasswordFile == "" {
		return c.Password, nil
	}
	b, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("nats: password file: %w", err)
	}
	word := strings.TrimRight(string(b), "\r\n")
	if word == "" {
		return "", fmt.Errorf("nats: password file %s: expected a password, it is empty", c.PasswordFile)
	}
	return word, nil
}

// Channel is a subscription to a subject. It implements kvevents.Channel.
type Channel struct {
	cfg  Config
	name string
}

// New returns a channel that is not connected yet.
func New(cfg Config) (*Channel, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if _, err := cfg.password(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Channel{cfg: cfg, name: cfg.URL + " " + cfg.Subject}, nil
}

// Name implements kvevents.Channel.
func (c *Channel) Name() string { return c.name }

// Run implements kvevents.Channel.
func (c *Channel) Run(ctx context.Context, sink kvevents.Sink) {
	for {
		if err := c.follow(ctx, sink); ctx.Err() == nil {
			sink.Down(err)
		}
		t := time.NewTimer(c.cfg.ReconnectWait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// follow connects and delivers messages until ctx ends or the connection is given up.
func (c *Channel) follow(ctx context.Context, sink kvevents.Sink) error {
	closed := make(chan struct{})
	login := func() (user, password string) {
		password, err := c.cfg.password()
		if err != nil {
			sink.Fault(err)
		}
		return c.cfg.Username, password
	}
	nc, err := natsgo.Connect(c.cfg.URL, natsgo.Name("baton"), natsgo.UserInfoHandler(login), natsgo.Timeout(c.cfg.Timeout),
		natsgo.MaxReconnects(-1), natsgo.ReconnectWait(c.cfg.ReconnectWait),
		natsgo.DisconnectErrHandler(func(_ *natsgo.Conn, err error) {
			if ctx.Err() == nil {
				sink.Down(c.named(cmp.Or(err, errDisconnected)))
			}
		}),
		natsgo.ReconnectHandler(func(*natsgo.Conn) { sink.Up() }),
		natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) { sink.Fault(c.named(err)) }),
		natsgo.ClosedHandler(func(*natsgo.Conn) { close(closed) }))
	if err != nil {
		return c.named(err)
	}
	defer func() {
		nc.Close()
		<-closed // no handler runs after it
	}()
	sub, err := nc.SubscribeSync(c.cfg.Subject)
	if err != nil {
		return c.named(err)
	}
	if err := sub.SetPendingLimits(-1, c.cfg.MaxBufferedBytes); err != nil {
		return c.named(err)
	}
	// Once the server has answered, it has the subscription.
	if err := nc.FlushTimeout(c.cfg.Timeout); err != nil {
		return c.named(err)
	}
	sink.Up()
	for {
		m, err := sub.NextMsgWithContext(ctx)
		switch {
		case err == nil:
			sink.Envelope(m.Data)
		case errors.Is(err, natsgo.ErrSlowConsumer): // the ids show which messages were lost
		default:
			return c.named(err)
		}
	}
}

func (c *Channel) named(err error) error { return fmt.Errorf("nats: %s: %w", c.name, err) }
