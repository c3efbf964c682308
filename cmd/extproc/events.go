package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/kvevents/nats"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// EventsConfig says where KV events come from besides the addresses that
// workers name in discovery.
type EventsConfig struct {
	// Bind are addresses on which publishers that dial are awaited.
	Bind   []string    `yaml:"bind"`
	Dynamo PlaneConfig `yaml:"dynamo"`
}

// PlaneConfig is Dynamo's event plane.
type PlaneConfig struct {
	ZMQ  []string   `yaml:"zmq"` // publishers or brokers, tcp://host:port
	NATS NATSConfig `yaml:"nats"`
}

// NATSConfig is where NATS carries the plane.
type NATSConfig struct {
	URL          string `yaml:"url"`           // nats://host:port or tls://host:port; empty: no NATS
	Subject      string `yaml:"subject"`       // default nats.DefaultSubject
	Username     string `yaml:"username"`      // where NATS asks for one
	PasswordFile string `yaml:"password_file"` // holds the user's password
}

// zmqAddress reads tcp://host:port.
func zmqAddress(s string) (string, error) {
	addr, ok := strings.CutPrefix(s, "tcp://")
	if _, port, err := net.SplitHostPort(addr); !ok || err != nil || port == "" {
		return "", fmt.Errorf("%q: expected tcp://host:port", s)
	}
	return addr, nil
}

func (c *EventsConfig) validate() error {
	_, err := c.addresses(&kvevents.Config{})
	if len(c.Bind) > 0 && (len(c.Dynamo.ZMQ) > 0 || c.Dynamo.NATS.URL != "") {
		err = errors.Join(err, errors.New("events: expected bind or dynamo: both would tell of the same workers"))
	}
	n := c.Dynamo.NATS
	if n.URL != "" {
		if e := n.channel("").Validate(); e != nil {
			err = errors.Join(err, fmt.Errorf("events.dynamo.nats: %w", e))
		}
	}
	if (n.Username == "") != (n.PasswordFile == "") {
		err = errors.Join(err, errors.New("events.dynamo.nats: expected both username and password_file, or neither"))
	}
	return err
}

// addresses fills in the addresses of ZeroMQ.
func (c *EventsConfig) addresses(out *kvevents.Config) (*kvevents.Config, error) {
	var errs []error
	read := func(key string, from []string, to *[]string) {
		for _, s := range from {
			a, err := zmqAddress(s)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %w", key, err))
			}
			*to = append(*to, a)
		}
	}
	read("events.bind", c.Bind, &out.Bind)
	read("events.dynamo.zmq", c.Dynamo.ZMQ, &out.PlaneZMQ)
	return out, errors.Join(errs...)
}

func (n *NATSConfig) channel(password string) nats.Config {
	return nats.Config{URL: n.URL, Subject: n.Subject, Username: n.Username, Password: password}
}

// newEvents makes what follows the workers' KV events.
func (p *plugin) newEvents() error {
	c := p.cfg.Events
	conf, err := c.addresses(&kvevents.Config{Index: p.index, Logger: p.log, Hooks: p.eventHooks(), Keep: p.cfg.Index.DumpMaxAge})
	if err != nil {
		return err
	}
	if n := c.Dynamo.NATS; n.URL != "" {
		password := ""
		if n.PasswordFile != "" {
			b, err := os.ReadFile(n.PasswordFile)
			if err != nil {
				return fmt.Errorf("events.dynamo.nats.password_file: %w", err)
			}
			password = strings.TrimRight(string(b), "\r\n")
		}
		channel, err := nats.New(n.channel(password))
		if err != nil {
			return err
		}
		conf.Channels = append(conf.Channels, channel)
	}
	p.events, err = kvevents.NewSubscriber(*conf)
	return err
}

func (p *plugin) eventHooks() kvevents.Hooks {
	t := func() *telemetry.Instruments { return p.tele.Instruments }
	return kvevents.Hooks{
		Applied: func(_ worker.Rank, events, _ int) { t().KVEvents(events) },
		Wrote:   p.onWritten,
		Refused: func(_ worker.Rank, why kvevents.Reason, n uint64) { t().KVRefused(why.String(), n) },
		Gap:     func(worker.Rank) { t().KVGap() },
		State: func(r worker.Rank, s kvevents.State) {
			p.book.SetDegraded(r, doubtful(s))
			p.server.Heard()
		},
		Replayed: func(_ worker.Rank, ok bool) {
			outcome := "ok"
			if !ok {
				outcome = "failed"
			}
			t().KVReplay(outcome)
		},
		Restored: func(worker.Rank, int) { t().KVRestored() },
		Reset: func(r worker.Rank, why kvevents.Cause) {
			t().KVReset(why.String())
			p.log.Warn("a rank's blocks were dropped from the index", "rank", r.String(), telemetry.KeyReason, why.String())
		},
	}
}

// onWritten has the book heed what KV events tell of running answers, and the server learn
// how fast they are written, where the engine tells of each block when it is full.
func (p *plugin) onWritten(r worker.Rank, blocks int, live bool) {
	w := p.view.Load().Worker(r.ID)
	if w == nil || !w.Engine.TellsAsItWrites() || w.Role == worker.Prefill {
		return
	}
	if told, compared := p.book.Wrote(r, blocks, live, time.Now()); compared {
		p.server.Wrote(w, told)
	}
}

// eventStream is what the page says of a rank's events.
func eventStream(r kvevents.RankStatus) admin.EventStream {
	e := admin.EventStream{LastSequence: r.LastSeq, Any: r.Seen, LastAt: r.LastAt, AsOf: r.AsOf, Via: r.Via, Refused: r.Refused.Map()}
	switch r.State {
	case kvevents.StateNone:
		if r.Kept == 0 {
			return admin.EventStream{}
		}
		e.State = admin.Connecting
	case kvevents.StateConnecting:
		e.State, e.Reason = admin.Connecting, r.LastError
		if r.Messages > 0 {
			e.State = admin.Lost
		}
	case kvevents.StateDegraded:
		e.State, e.Degraded, e.Reason = admin.Connected, true, "some events were lost"
	default:
		e.State = admin.Connected
	}
	if r.Kept > 0 {
		e.Degraded, e.Reason = true, fmt.Sprintf("%d blocks of before the restart wait for proof that they are still there", r.Kept)
	}
	// What was refused of late says more than that something is amiss.
	if why, n := r.Missing.Worst(); n > 0 && e.State == admin.Connected {
		e.Degraded, e.Reason = true, "events refused: "+why.String()
	}
	if r.LeftOut > 0 && e.Reason == "" {
		e.Reason = fmt.Sprintf("%d of its blocks are left out: they depend on what cannot be read, as of a picture", r.LeftOut)
	}
	return e
}

func (p *plugin) channelRows() []admin.ChannelRow {
	var rows []admin.ChannelRow
	for _, c := range p.events.Channels() {
		rows = append(rows, admin.ChannelRow{
			Name: c.Name, Up: c.Up, Since: c.Since, Messages: c.Messages, Refused: c.Refused.Map(), Reason: c.LastError,
			Waiting: c.Waiting, MaxWaiting: c.MaxWaiting,
		})
	}
	return rows
}
