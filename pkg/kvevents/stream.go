package kvevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// errDoubted ends a connection that is to be made anew; see Subscriber.Resync.
var errDoubted = errors.New("kvevents: the rank holds less than its events say: it is connected anew")

const (
	// maxBarren is how many replays in a row may bring only a part of the missing
	// messages, or show another past than the one before. After these, no replay is asked
	// for until the next connection.
	maxBarren     = 16
	inboxMessages = 256     // per rank, between the socket and the index
	turnMessages  = 64      // most messages that one turn judges, since others may wait for the turn
	turnBytes     = 1 << 20 // a turn ends once it has judged so many bytes
	// waitingBytes bounds what waits to be judged, once for a connection and once for its
	// replay. A publisher that sends faster waits or drops messages, which are then found
	// missing.
	waitingBytes = 16 << 20
	settle       = time.Second // time from connecting to the first audit
)

// stream follows the publisher of one rank. All fields belong to the goroutine of run,
// except the status and the fields that turn guards.
type stream struct {
	feed

	// set at construction, read-only
	src     source
	adopted chan adopted  // connections of a publisher that dials; nil: the publisher is dialed
	ended   chan struct{} // closed when run has ended, so that adopt does not wait for it
	again   chan struct{} // of size 1: the rank is to be connected anew

	// guarded by turn, as draining and wrote
	tracker *Tracker
	decoder *Decoder

	// draining: a replay has ended, and the messages that were held back are judged, a
	// limited number in each turn. Newer messages wait.
	draining bool
	wrote    wrote // of this turn

	// owned by the run goroutine
	session *session // nil while disconnected
	warned  bool     // of blocks that differ from the worker's registration
	// auditing: the replay in progress only checks, in a quiet time, that nothing was
	// missed. The status keeps its state meanwhile.
	auditing bool
	next     *adopted // the connection to follow next; nil: none yet
}

// wrote is what Hooks.Wrote will be told. It is told once for all messages of a turn,
// since the hook takes a lock that every pick takes.
type wrote struct {
	blocks int
	late   bool // some of the messages came late, or something may be missing
}

// session is the state of one connection.
type session struct {
	ctx     context.Context //nolint:containedctx // ends with the session; replays are started deep in the loop
	wg      sync.WaitGroup
	conn    *conn
	inbox   chan message
	inRoom  *room
	readErr error // valid once inbox is closed

	buffer      []message // live messages held back by the tracker
	bufferBytes int

	answers    chan answer // of the replay in progress; nil: none
	answerRoom *room       // bounds the bytes in answers
	stopReplay context.CancelFunc
	barren     int  // replays in a row that did not bring what was missing
	upset      bool // the replay in progress has led to a reset
	failed     bool // the last replay failed
	audit      *time.Timer
	check      *time.Timer
	checker    *checker
}

// answer is one message of a replay, or its end.
type answer struct {
	m    message
	end  bool
	fail error // with end: why the replay failed; nil: it ended well
}

func newStream(cfg *Config, r worker.Rank, src source) *stream {
	s := &stream{
		src:     src,
		again:   make(chan struct{}, 1),
		tracker: NewTracker(src.replayAddr != ""),
		decoder: NewDecoder(src.blockSize, src.rank, src.eagle),
	}
	s.begin(cfg, r)
	s.named = src.addr != ""
	if src.addr != "" { // the rank's id alone does not show which worker it is
		s.log = s.log.With(slog.String(logkey.Address, src.addr))
	}
	if src.clears {
		s.tracker.EmptyBefore(1)
	}
	s.decoder.anyRank = src.only && src.addr != ""
	s.decoder.Budget(cfg.Index.Reserve)
	if src.addr == "" {
		s.adopted, s.ended = make(chan adopted), make(chan struct{})
	}
	return s
}

// run follows the publisher until ctx ends. It connects again and again, or waits for the
// publisher to dial.
func (s *stream) run(ctx context.Context) {
	if s.adopted != nil {
		s.await(ctx)
		return
	}
	s.cfg.reconnect(ctx, func() error {
		s.setState(StateConnecting)
		return s.connect(ctx)
	}, s.fault)
}

// connect follows the publisher over one connection, and returns why it ended.
func (s *stream) connect(ctx context.Context) error {
	c, err := dialZMQ(ctx, s.cfg.Dial, s.src.addr, typeSub, s.cfg.conn())
	if err != nil {
		return err
	}
	// The subscription is made before the replay. A message that is published between the
	// two arrives twice and is applied once.
	if err := c.subscribe(s.src.topic); err != nil {
		c.close()
		return fmt.Errorf("kvevents: subscribe at %s: %w", s.src.addr, err)
	}
	return s.follow(ctx, c, nil)
}

// follow follows a connection that has subscribed. before has the messages that were
// already read from it.
func (s *stream) follow(ctx context.Context, c *conn, before []message) error {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, c.close)
	ss := &session{
		ctx: ctx, conn: c, inbox: make(chan message, inboxMessages), inRoom: newRoom(),
		stopReplay: func() {}, audit: time.NewTimer(settle), check: time.NewTimer(s.cfg.Check),
		checker: newChecker(s.cfg, s.src.replayAddr),
	}
	s.session = ss
	defer func() {
		cancel()
		stop()
		c.close()
		ss.audit.Stop()
		ss.check.Stop()
		ss.wg.Wait()
		s.turn.Lock()
		s.draining = false
		s.tracker.Disconnect()
		if s.kept.expired() { // the deadline passed while a replay judged the blocks
			s.abandon()
		}
		s.turn.Unlock()
		s.session = nil
	}()
	ss.wg.Go(func() { s.receive(ss) })
	if s.src.replayAddr != "" {
		ss.wg.Go(func() { ss.checker.run(ctx) })
	}
	s.inTurn(func() {
		if s.kept.expired() {
			s.abandon()
		}
		s.obey(s.tracker.Connect(), message{})
		for _, m := range before {
			m.late = true
			s.obey(s.tracker.Live(m.seq, s.sum(m)), m)
		}
	})
	return s.loop(ss)
}

// inTurn calls do with the turn held, then updates the status and calls Hooks.Wrote.
func (s *stream) inTurn(do func()) {
	s.turn.Lock()
	defer s.turn.Unlock()
	do()
	s.settleState()
	if w := s.wrote; w != (wrote{}) {
		s.wrote = wrote{}
		s.cfg.Hooks.Wrote(s.rank, w.blocks, !w.late)
	}
}

// receive reads messages into the inbox until the connection ends.
func (s *stream) receive(ss *session) {
	defer close(ss.inbox)
	var frames [][]byte
	for {
		var err error
		frames, err = ss.conn.receive(frames)
		if err != nil {
			ss.readErr = fmt.Errorf("kvevents: events of %s: %w", ss.conn.peer, err)
			return
		}
		m, ok := parsePublished(frames)
		if !ok {
			s.refuse(BadFrames, 1)
			continue
		}
		err = ss.inRoom.enter(ss.ctx, len(m.payload))
		if err != nil {
			ss.readErr = err
			return
		}
		select {
		case ss.inbox <- m:
		case <-ss.ctx.Done():
			ss.readErr = ss.ctx.Err()
			return
		}
	}
}

// loop judges all that happens on the connection, one thing at a time.
func (s *stream) loop(ss *session) error {
	ping := time.NewTicker(s.cfg.Heartbeat)
	defer ping.Stop()
	for {
		for s.draining && ss.ctx.Err() == nil {
			s.inTurn(s.drain)
		}
		select {
		case <-ss.ctx.Done():
			return ss.ctx.Err()
		case a := <-s.adopted: // the publisher has dialed again: the newer connection counts
			s.next = &a
			return errReplaced
		case <-s.again:
			return errDoubted
		case m, ok := <-ss.inbox:
			if !ok {
				return ss.readErr
			}
			ss.audit.Reset(s.cfg.Audit)
			ss.check.Reset(s.cfg.Check)
			s.inTurn(func() { s.takeLive(m) })
		case a := <-ss.answers:
			s.inTurn(func() { s.takeReplayed(a) })
		case <-ss.audit.C:
			ss.audit.Reset(s.cfg.Audit)
			s.inTurn(s.audit)
		case <-ss.check.C:
			if !s.look() {
				ss.check.Reset(s.cfg.Check)
			}
		case c := <-ss.checker.told:
			s.looked(c)
		case <-ping.C:
			if err := ss.conn.ping(); err != nil {
				return fmt.Errorf("kvevents: ping %s: %w", ss.conn.peer, err)
			}
		}
	}
}

// takeLive judges a message of the subscription, and those that wait in the inbox.
func (s *stream) takeLive(m message) {
	inbox, bytes := s.session.inbox, 0
	for waiting := min(len(inbox), turnMessages-1); ; waiting-- {
		s.session.inRoom.leave(len(m.payload))
		s.obey(s.tracker.Live(m.seq, s.sum(m)), m)
		bytes += len(m.payload)
		if waiting == 0 || bytes >= turnBytes || s.draining {
			return
		}
		m = <-inbox
	}
}

// takeReplayed judges an answer of the replay in progress, and those that wait behind it.
func (s *stream) takeReplayed(a answer) {
	answers, room, bytes := s.session.answers, s.session.answerRoom, 0
	for waiting := min(len(answers), turnMessages-1); ; waiting-- {
		room.leave(len(a.m.payload))
		s.answered(a)
		bytes += len(a.m.payload)
		if waiting == 0 || bytes >= turnBytes || s.session.answers != answers { // the replay has ended, or another has begun
			return
		}
		a = <-answers
	}
}

// sum must be the same in every process, since a position may outlive its process.
func (s *stream) sum(m message) uint64 { return xxh3.Hash(m.payload) }

// obey performs the verdict on m.
func (s *stream) obey(v Verdict, m message) {
	if v.Gap {
		s.cfg.Hooks.Gap(s.rank)
	}
	if v.Reset {
		s.drop(v.Cause)
		s.decoder.Forget()
		if v.Cause == Restarted {
			s.decoder.Reset()
		}
		if v.Replay {
			s.session.buffer, s.session.bufferBytes = nil, 0
		}
		s.wrote.late = true // the lost messages may have told of written blocks, too
	}
	if v.Restore {
		s.decoder.resume(s.restore())
	}
	if v.Apply {
		s.apply(m)
	}
	if v.Replay {
		s.startReplay(v.From)
	}
	if v.Buffer {
		s.hold(m)
	}
}

// hold keeps a live message until the replay has ended. Beyond the limit the replay is
// given up: the rank may lose its blocks, but the memory stays bounded.
func (s *stream) hold(m message) {
	ss := s.session
	m.late = true
	ss.buffer = append(ss.buffer, m)
	ss.bufferBytes += len(m.payload)
	if ss.bufferBytes > s.cfg.MaxBufferedBytes && s.tracker.Phase() == Replaying {
		s.endReplay(fmt.Errorf("kvevents: more than %d bytes arrived during a replay", s.cfg.MaxBufferedBytes))
	}
}

// startReplay asks for a replay in a goroutine of its own. A replay that still runs is
// stopped.
func (s *stream) startReplay(from uint64) {
	ss := s.session
	ss.stopReplay()
	ctx, cancel := context.WithCancel(ss.ctx)
	answers, room := make(chan answer, 64), newRoom()
	ss.answers, ss.answerRoom, ss.stopReplay = answers, room, cancel
	s.auditing = false
	ss.wg.Go(func() {
		defer cancel()
		err := s.replay(ctx, from, func(a answer) bool {
			if room.enter(ctx, len(a.m.payload)) != nil {
				return false
			}
			select {
			case answers <- a:
				return true
			case <-ctx.Done():
				return false
			}
		})
		select {
		case answers <- answer{end: true, fail: err}:
		case <-ctx.Done():
		}
	})
}

// replay asks for the replay, several times if it fails. The tracker ignores messages
// that a later attempt repeats.
func (s *stream) replay(ctx context.Context, from uint64, each func(answer) bool) error {
	cfg := connConfig{maxBytes: s.cfg.MaxMessageBytes, timeout: s.cfg.Timeout}
	most := replayLimits{time: s.cfg.ReplayFor, bytes: s.cfg.MaxReplayBytes}
	wait := 2 * s.cfg.MinBackoff
	for attempt := 1; ; attempt++ {
		err := replay(ctx, s.cfg.Dial, s.src.replayAddr, from, cfg, most, func(m message) bool {
			return each(answer{m: m})
		})
		if err == nil || errors.Is(err, errEndless) || attempt >= s.cfg.ReplayAttempts || !sleep(ctx, wait) {
			return err
		}
		wait *= 2
	}
}

// answered judges one answer of the replay in progress.
func (s *stream) answered(a answer) {
	if a.end {
		s.endReplay(a.fail)
		return
	}
	v := s.tracker.Replayed(a.m.seq, s.sum(a.m))
	s.session.upset = s.session.upset || v.Reset
	s.obey(v, a.m)
}

// endReplay ends the replay in progress, whether it ended well or not, and begins to
// drain the buffer.
func (s *stream) endReplay(fail error) {
	ss := s.session
	ss.stopReplay()
	ss.answers, ss.stopReplay = nil, func() {}
	s.cfg.Hooks.Replayed(s.rank, fail == nil)
	if fail != nil {
		s.fault(fail)
		s.obey(s.tracker.ReplayFail(), message{})
		if errors.Is(fail, errEndless) {
			s.endless(fail)
		}
	} else {
		s.mu.Lock()
		s.status.Replays++
		s.mu.Unlock()
		v := s.tracker.ReplayEnd()
		s.obey(v, message{})
		if v.Replay {
			ss.upset = true
			return
		}
	}
	if ss.barren >= maxBarren {
		s.endless(fmt.Errorf("%w: %d in a row have not brought what was missing", errEndless, ss.barren))
	}
	s.draining, ss.failed = true, fail != nil
	s.drain()
}

// drain judges the messages that were held back during a replay, at most so many as fit a
// turn.
func (s *stream) drain() {
	ss, bytes := s.session, 0
	for range turnMessages {
		if len(ss.buffer) == 0 || bytes >= turnBytes {
			break
		}
		m := ss.buffer[0]
		v := s.tracker.Drain(m.seq, s.sum(m))
		ss.upset = ss.upset || v.Reset
		if v.Replay { // this message and those behind it stay in the buffer
			s.draining, v.Buffer = false, false
			ss.barren++
			s.obey(v, message{})
			return
		}
		ss.buffer[0] = message{}
		ss.buffer = ss.buffer[1:]
		ss.bufferBytes -= len(m.payload)
		bytes += len(m.payload)
		s.obey(v, m)
	}
	if len(ss.buffer) > 0 {
		return
	}
	ss.buffer, s.draining = nil, false
	if !ss.failed { // a failed replay shows nothing
		s.whole()
		ss.barren++
		if !ss.upset {
			ss.barren = 0
		}
	}
	ss.upset = false
}

// endless stops all replays until the next connection.
func (s *stream) endless(why error) {
	s.tracker.Endless()
	s.fault(why)
	s.log.Warn("replays of kv events do not end: no replay is asked for until the publisher is connected anew", slog.Any(logkey.Err, why))
}

// apply decodes a message and gives its events to the index.
func (s *stream) apply(m message) {
	b, err := s.decoder.Decode(m.payload)
	if err != nil {
		s.fault(fmt.Errorf("kvevents: message %d of %s: %w", m.seq, s.session.conn.peer, err))
	}
	blocks := 0
	for i := range b.Events {
		if b.Events[i].extends() {
			s.wrote.blocks++
			s.wrote.late = s.wrote.late || m.late
		}
		blocks += s.perform(&b.Events[i], &b.Refused)
		if n := b.Refused[HashConflict]; n > 0 {
			b.Refused[HashConflict] = 0
			b.Refused[s.decoder.doubled(&b.Events[i].Stored)] += n
		}
		if b.Events[i].Kind == Cleared {
			s.tracker.Cleared()
		}
	}
	if b.Whole { // what was short before it was the end of a prompt
		s.mu.Lock()
		s.status.Missing[BlockSizeMismatch] = 0
		s.mu.Unlock()
	}
	s.refuseAll(&b.Refused)
	if b.Refused[BlockSizeMismatch]+b.Refused[EagleMismatch] > 0 && !s.warned {
		s.warned = true
		s.log.Warn("kv events have another block size or EAGLE setting than the worker's record, so none can be used: correct the record",
			slog.Uint64(logkey.BlockSize, uint64(s.src.blockSize)), slog.Bool(logkey.Eagle, s.src.eagle), slog.Uint64(logkey.EventBlockSize, s.decoder.told.BlockSize))
	}
	s.mu.Lock()
	s.status.Told = s.decoder.told
	state := s.status.State
	s.mu.Unlock()
	if none := s.decoder.told.Unusable; s.unusable.Swap(none) != none {
		s.cfg.Hooks.State(s.rank, state) // the answer of Subscriber.Tells has changed
	}
	s.applied(len(b.Events), blocks)
	s.decoder.trim()
}

// settleState writes the state of the tracker into the status.
func (s *stream) settleState() {
	switch {
	case (s.tracker.Phase() == Replaying || s.draining) && s.auditing: // no change
	case s.tracker.Phase() == Replaying || s.draining:
		s.setState(StateReplaying)
	case s.tracker.Degraded():
		s.setState(StateDegraded)
	default:
		s.setState(StateConnected)
	}
	s.mu.Lock()
	s.status.LastSeq, s.status.Seen = s.tracker.Last()
	s.status.LeftOut, s.status.OtherGroups = s.decoder.LeftOut(), s.decoder.others
	s.mu.Unlock()
}
