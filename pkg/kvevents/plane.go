package kvevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Channel is one connection to an event plane, or several under one name.
type Channel interface {
	// Name names the channel on pages and in logs. It holds no secret.
	Name() string
	// Run gives messages to the sink until ctx ends, and reconnects as often as needed.
	// It returns when all its goroutines have ended.
	Run(ctx context.Context, sink Sink)
}

// Sink takes the messages and the state of a [Channel]. Envelope is called by one
// goroutine at a time. The other methods may be called by several at once.
type Sink interface {
	// Up says that messages arrive from now on.
	Up()
	// Down says that messages no longer arrive, or that connecting has failed, with the
	// error.
	Down(error)
	// Envelope takes one message; see [ParseEnvelope]. It does not keep the bytes, and
	// returns when the events are in the index.
	Envelope([]byte)
	// Fault notes an error that leaves the channel up.
	Fault(error)
	// Refuse counts n messages that are not envelopes.
	Refuse(why Reason, n uint64)
}

// These bound how many publishers, and how many ranks that are not followed, are
// remembered. Senders choose both kinds of ids, and so their number.
const (
	maxPublishers = 1 << 16
	maxStrangers  = 1 << 16
)

// plane takes the events of ranks from the channels of an event plane.
type plane struct {
	cfg     *Config
	intakes []*intake // set at construction, read-only

	// mu guards the fields below. No other lock is taken under it, and it is never taken
	// while a rank's turn is held.
	mu         sync.Mutex
	ranks      map[worker.Rank]*planeRank // nil: the rank's events come from elsewhere
	publishers map[uint64]planePublisher
	strangers  map[worker.Rank]uint64 // ranks that were not followed: the publisher of their last event
	blind      bool                   // strangers was full once: any rank may have been among them
}

// planePublisher is how far the messages of a publisher were heard.
type planePublisher struct {
	next  uint64 // the sequence that comes next
	whole bool   // no message was missed so far
}

func newPlane(cfg *Config) *plane {
	p := &plane{
		cfg: cfg, ranks: map[worker.Rank]*planeRank{},
		publishers: map[uint64]planePublisher{}, strangers: map[worker.Rank]uint64{},
	}
	channels := cfg.Channels
	for _, a := range cfg.PlaneZMQ {
		channels = append(channels, &zmqChannel{cfg: cfg, addr: a})
	}
	for _, c := range channels {
		p.intakes = append(p.intakes, &intake{plane: p, channel: c, log: cfg.Logger.With(slog.String(logkey.Channel, c.Name())),
			channelState: channelState{status: ChannelStatus{Name: c.Name(), Since: time.Now()}}})
	}
	return p
}

// add makes the plane take events of the rank for pr. A nil pr says that the rank's
// events come from elsewhere; those of the plane are then refused.
func (p *plane) add(r worker.Rank, pr *planeRank) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pr != nil {
		pr.missedOf, pr.missed = p.strangers[r]
		pr.missed = pr.missed || p.blind
	}
	delete(p.strangers, r)
	p.ranks[r] = pr
}

// remove undoes add. After it returns, no event of the rank is applied.
func (p *plane) remove(r worker.Rank) {
	p.mu.Lock()
	pr := p.ranks[r]
	delete(p.ranks, r)
	p.mu.Unlock()
	if pr == nil {
		return
	}
	pr.turn.Lock()
	pr.gone = true
	publisher := pr.cursor.publisher
	pr.turn.Unlock()
	// If the rank comes back, then without the blocks that it held before.
	p.stranger(r, publisher)
}

func (p *plane) stranger(r worker.Rank, publisher uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.strangers) >= maxStrangers {
		clear(p.strangers)
		p.blind = true
	}
	p.strangers[r] = publisher
}

// heard notes a message of a publisher and reports whether all earlier ones were heard.
func (p *plane) heard(publisher, sequence uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, known := p.publishers[publisher]
	switch {
	case !known:
		s.whole = sequence == 0
	case sequence > s.next:
		s.whole = false
	}
	s.next = max(s.next, sequence+1)
	if !known && len(p.publishers) >= maxPublishers {
		clear(p.publishers) // publishers that are heard again count as incomplete
	}
	p.publishers[publisher] = s
	return s.whole
}

// rank returns the receiver of the events of r. If there is none, the reason says why.
func (p *plane) rank(r worker.Rank) (*planeRank, Reason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pr, known := p.ranks[r]
	if known && pr == nil {
		return nil, SecondSource
	}
	return pr, UnknownWorker
}

// planeRank is a rank whose events come through an event plane.
type planeRank struct {
	feed

	// set by plane.add, read-only from then on
	missed   bool   // events of missedOf were sent while nobody followed the rank
	missedOf uint64 // a publisher; 0: any publisher

	// guarded by turn, since several channels may bring events of one rank
	cursor Cursor
	via    *intake
}

func newPlaneRank(cfg *Config, r worker.Rank) *planeRank {
	pr := &planeRank{}
	pr.begin(cfg, r)
	return pr
}

// take applies events of this rank. False means that the rank is no longer followed.
func (pr *planeRank) take(in *intake, e Envelope, whole bool, events []RouterEvent) bool {
	pr.turn.Lock()
	defer pr.turn.Unlock()
	if pr.gone {
		return false
	}
	if pr.missed && (pr.missedOf == 0 || pr.missedOf == e.Publisher) {
		whole = false
	}
	var refused Refusals
	applied, blocks := 0, 0
	for i := range events {
		x := &events[i]
		if x.Why == ForeignOwner && x.Refused && pr.cursor.Foreign(e.Publisher) {
			refused[ForeignOwner]++
			continue
		}
		v, why := pr.cursor.Judge(e.Publisher, whole, x.ID)
		if v.Gap {
			pr.cfg.Hooks.Gap(pr.rank)
		}
		if v.Reset {
			pr.drop(v.Cause)
		}
		if v.Restore {
			pr.restore()
		}
		switch {
		case !v.Apply:
			refused[why]++
		case x.Refused:
			refused[x.Why]++
		default:
			blocks += pr.perform(&x.Event, &refused)
			applied++
			if x.Kind == Cleared {
				pr.cursor.Cleared()
			}
		}
	}
	pr.refuseAll(&refused)
	if applied > 0 {
		pr.via = in
		pr.applied(applied, blocks)
	}
	pr.settle()
	return true
}

// settle writes the states of the cursor and of the channel into the status. The caller
// holds the turn.
func (pr *planeRank) settle() {
	if pr.via == nil {
		return
	}
	switch {
	case !pr.via.snapshot().Up:
		pr.setState(StateConnecting)
	case pr.cursor.Degraded():
		pr.setState(StateDegraded)
	default:
		pr.setState(StateConnected)
	}
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.status.LastSeq, pr.status.Seen = pr.cursor.Last()
	pr.status.Via = pr.via.channel.Name()
}

// intake is the plane's end of one channel. It implements Sink.
type intake struct {
	// set at construction, read-only
	plane   *plane
	channel Channel
	log     *slog.Logger

	decoder PlaneDecoder // owned by the goroutine that calls Envelope
	channelState
}

// Up implements Sink.
func (in *intake) Up() {
	in.log.Info("kv event channel", slog.String(logkey.State, "up"))
	in.turned(true)
}

// Down implements Sink.
func (in *intake) Down(err error) {
	in.failed(err)
	if in.snapshot().Up {
		in.log.Info("kv event channel", slog.String(logkey.State, "down"), slog.Any(logkey.Err, err))
	} else {
		in.log.Debug("kv event channel", slog.Any(logkey.Err, err))
	}
	in.turned(false)
}

// turned notes that the channel is up or down, and updates the ranks whose events it
// brings.
func (in *intake) turned(up bool) {
	if !in.setUp(up) {
		return
	}
	in.plane.mu.Lock()
	ranks := make([]*planeRank, 0, len(in.plane.ranks))
	for _, pr := range in.plane.ranks {
		if pr != nil {
			ranks = append(ranks, pr)
		}
	}
	in.plane.mu.Unlock()
	for _, pr := range ranks {
		pr.turn.Lock()
		if pr.via == in {
			pr.settle()
		}
		pr.turn.Unlock()
	}
}

// Refuse implements Sink.
func (in *intake) Refuse(why Reason, n uint64) { in.refused(&in.plane.cfg.Hooks, why, n) }

// Fault implements Sink.
func (in *intake) Fault(err error) {
	in.failed(err)
	in.log.Debug("kv event channel", slog.Any(logkey.Err, err))
}

// Envelope implements Sink.
func (in *intake) Envelope(b []byte) {
	e, err := ParseEnvelope(b)
	if err != nil {
		in.Fault(err)
		in.Refuse(Malformed, 1)
		return
	}
	if string(e.Topic) != planeTopic {
		in.Fault(fmt.Errorf("%w: topic %.64q: expected %q", errEnvelope, e.Topic, planeTopic))
		in.Refuse(ForeignTopic, 1)
		return
	}
	in.counted()
	whole := in.plane.heard(e.Publisher, e.Sequence)
	events, malformed, err := in.decoder.Decode(e.Payload)
	if err != nil {
		in.Fault(fmt.Errorf("message %d of publisher %x: %w", e.Sequence, e.Publisher, err))
	}
	in.Refuse(Malformed, malformed)
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Rank == events[0].Rank {
			n++
		}
		in.take(e, whole, events[:n])
		events = events[n:]
	}
}

// take gives events of one rank to that rank, or counts them as refused.
func (in *intake) take(e Envelope, whole bool, events []RouterEvent) {
	pr, why := in.plane.rank(events[0].Rank)
	if pr != nil && pr.take(in, e, whole, events) {
		return
	}
	if why == UnknownWorker {
		in.plane.stranger(events[0].Rank, e.Publisher)
	}
	in.Refuse(why, uint64(len(events)))
}

var errEnded = errors.New("kvevents: the channel has ended")

func (in *intake) run(ctx context.Context) {
	in.channel.Run(ctx, in)
	in.Down(errEnded)
}
