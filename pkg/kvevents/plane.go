package kvevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Channel is a way into an event plane.
type Channel interface {
	// Name names the channel on pages and in logs. It holds no secret.
	Name() string
	// Run gives the sink what arrives until ctx ends, connecting again as often
	// as it must, and returns when all goroutines of its own have ended.
	Run(ctx context.Context, sink Sink)
}

// Sink takes what a [Channel] has to give. Envelope is called by one goroutine
// at a time, the others by any.
type Sink interface {
	// Up says that messages arrive from now on.
	Up()
	// Down says that they do not any more, or could not be had, and why.
	Down(error)
	// Envelope takes one message; see [ParseEnvelope]. It does not keep it, and
	// returns when its events are in the index.
	Envelope([]byte)
	// Fault notes an error that leaves the channel up.
	Fault(error)
	// Refuse counts n messages that are no envelopes.
	Refuse(why Reason, n uint64)
}

// Bounds of what is remembered of whoever sends.
const (
	maxPublishers = 1 << 16
	maxStrangers  = 1 << 16
)

// plane takes the events of ranks from the channels of an event plane.
type plane struct {
	cfg     *Config
	intakes []*intake // set at construction, read-only

	// mu guards what follows. Taken before a rank's turn or not with it; a
	// leaf to all else.
	mu         sync.Mutex
	ranks      map[worker.Rank]*planeRank // nil: followed by other means
	publishers map[uint64]planePublisher
	strangers  map[worker.Rank]uint64 // ranks that nobody listened to: their publisher
	blind      bool                   // there were too many strangers
}

// planePublisher is how far a publisher was heard.
type planePublisher struct {
	next  uint64 // sequence
	whole bool   // every message so far
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
		p.intakes = append(p.intakes, &intake{plane: p, channel: c, log: cfg.Logger.With(slog.String("channel", c.Name())),
			status: ChannelStatus{Name: c.Name(), Since: time.Now()}})
	}
	return p
}

// add makes the rank one whose events are taken; nil for one that has events of
// its own.
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

// remove ends what add began. When it returns, no event of the rank is applied
// any more.
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
	// Should it come back, then without what it held before.
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

// heard notes a message of a publisher and reports whether all before it were
// heard too.
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
		clear(p.publishers) // those that are heard again count as incomplete
	}
	p.publishers[publisher] = s
	return s.whole
}

// rank returns who takes the events of r. Without one, the reason says why.
func (p *plane) rank(r worker.Rank) (*planeRank, Reason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pr, known := p.ranks[r]
	if known && pr == nil {
		return nil, SecondSource
	}
	return pr, UnknownWorker
}

// planeRank is a rank whose events come by an event plane.
type planeRank struct {
	feed

	// set by plane.add, read-only from then on
	missed   bool   // events of missedOf were there while nobody listened
	missedOf uint64 // 0: of whomever

	// turn guards what follows, and is held while events are applied: those of
	// one rank may come by several channels. Before feed.mu and the index's own.
	turn   sync.Mutex
	gone   bool
	cursor Cursor
	via    *intake
}

func newPlaneRank(cfg *Config, r worker.Rank) *planeRank {
	pr := &planeRank{}
	pr.begin(cfg, r)
	return pr
}

// take applies events of this rank. It returns false when the rank has left.
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
			pr.cfg.Hooks.gap(pr.rank)
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

// settle writes what the cursor and the channel say into the status. The caller
// has the turn.
func (pr *planeRank) settle() {
	if pr.via == nil {
		return
	}
	switch {
	case !pr.via.up():
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

	decoder PlaneDecoder // owned by whoever calls Envelope

	// mu guards status. A leaf.
	mu     sync.Mutex
	status ChannelStatus
}

func (in *intake) up() bool { return in.snapshot().Up }

func (in *intake) snapshot() ChannelStatus {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.status
}

// Up implements Sink.
func (in *intake) Up() {
	in.log.Info("kv event channel", slog.String("state", "up"))
	in.turned(true)
}

// Down implements Sink.
func (in *intake) Down(err error) {
	in.mu.Lock()
	in.status.LastError, in.status.LastFault = err.Error(), time.Now()
	was := in.status.Up
	in.mu.Unlock()
	if was {
		in.log.Info("kv event channel", slog.String("state", "down"), slog.Any("err", err))
	} else {
		in.log.Debug("kv event channel", slog.Any("err", err))
	}
	in.turned(false)
}

// turned tells the ranks that are fed by the channel that it is up or down.
func (in *intake) turned(up bool) {
	in.mu.Lock()
	changed := in.status.Up != up
	if changed {
		in.status.Up, in.status.Since = up, time.Now()
	}
	in.mu.Unlock()
	if !changed {
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
func (in *intake) Refuse(why Reason, n uint64) {
	if n == 0 {
		return
	}
	in.mu.Lock()
	in.status.Refused[why] += n
	in.mu.Unlock()
	in.plane.cfg.Hooks.refused(worker.Rank{}, why, n)
}

// Fault implements Sink.
func (in *intake) Fault(err error) {
	in.mu.Lock()
	in.status.LastError, in.status.LastFault = err.Error(), time.Now()
	in.mu.Unlock()
	in.log.Debug("kv event channel", slog.Any("err", err))
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
	in.mu.Lock()
	in.status.Messages++
	in.mu.Unlock()
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

// take gives events of one rank to it.
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

// run runs the channel.
func (in *intake) run(ctx context.Context) {
	in.channel.Run(ctx, in)
	in.Down(errEnded)
}
