package kvevents

import (
	"context"
	"encoding/binary"
	"fmt"
)

// checker asks the replay port of a quiet publisher whether it has sent more than was
// heard, over one connection that stays open. It asks for messages from the next sequence
// on. If all was heard, the answer is the end marker alone. If there is more, an audit
// follows, since the answer does not prove that the publisher is the same.
type checker struct {
	cfg  *Config
	addr string
	ask  chan uint64
	told chan checked

	// owned by the goroutine of run
	conn *conn // nil: no connection
	kept bool  // conn has answered before
}

// checked is the answer to the question for messages from a sequence on.
type checked struct {
	from  uint64
	newer bool // there are such messages
	err   error
}

func newChecker(cfg *Config, addr string) *checker {
	return &checker{cfg: cfg, addr: addr, ask: make(chan uint64), told: make(chan checked, 1)}
}

// run answers questions until ctx ends.
func (k *checker) run(ctx context.Context) {
	defer k.hangUp()
	for {
		select {
		case from := <-k.ask:
			c := checked{from: from}
			c.newer, c.err = k.check(ctx, from)
			if c.err != nil && k.kept && ctx.Err() == nil {
				k.hangUp() // the peer may have closed an idle connection
				c.newer, c.err = k.check(ctx, from)
			}
			k.kept = c.err == nil && !c.newer
			if !k.kept {
				k.hangUp() // the rest of a replay must not be read as the next answer
			}
			select {
			case k.told <- c:
			case <-ctx.Done(): // the answer before it was not read any more
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (k *checker) hangUp() {
	if k.conn != nil {
		k.conn.close()
	}
	k.conn, k.kept = nil, false
}

func (k *checker) check(ctx context.Context, from uint64) (newer bool, err error) {
	if k.conn == nil {
		cfg := connConfig{maxBytes: k.cfg.MaxMessageBytes, timeout: k.cfg.Timeout}
		k.conn, err = dialZMQ(ctx, k.cfg.Dial, k.addr, typeDealer, cfg)
		if err != nil {
			return false, err
		}
	}
	defer context.AfterFunc(ctx, k.conn.close)()
	if err := k.conn.send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return false, fmt.Errorf("kvevents: check at %s: %w", k.addr, err)
	}
	frames, err := k.conn.receive(nil)
	if err != nil {
		return false, fmt.Errorf("kvevents: check at %s: %w", k.addr, err)
	}
	m, ok := parseReplayed(frames)
	if !ok {
		return false, fmt.Errorf("kvevents: check at %s: message of %d frames: expected a sequence and a payload", k.addr, len(frames))
	}
	return m.seq != endOfReplay && m.seq >= from, nil
}

// look asks whether more was sent than was heard. False means that it did not ask: a
// replay is in progress, which finds the same out, or the last question is not answered.
func (s *stream) look() bool {
	s.turn.Lock()
	from, asks := s.tracker.Next()
	s.turn.Unlock()
	if !asks {
		return false
	}
	select {
	case s.session.checker.ask <- from:
		return true
	default: // the last question is not answered yet
		return false
	}
}

// looked judges the answer. It means nothing if messages were applied since the question.
func (s *stream) looked(c checked) {
	if c.err != nil {
		s.fault(c.err)
		s.session.check.Reset(s.cfg.Audit) // a port that does not answer is asked less often
		return
	}
	s.session.check.Reset(s.cfg.Check)
	s.inTurn(func() {
		next, asks := s.tracker.Next()
		switch {
		case !asks || next != c.from:
		case c.newer:
			s.audit()
		default:
			s.whole()
		}
	})
}

// audit asks for missed messages. The caller holds the turn.
func (s *stream) audit() {
	v := s.tracker.Audit()
	s.obey(v, message{})
	s.auditing = v.Replay
}
