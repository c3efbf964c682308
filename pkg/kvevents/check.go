package kvevents

import (
	"context"
	"encoding/binary"
	"fmt"
)

// checker asks the replay port of a quiet publisher whether it has sent more than
// was heard, over one connection for as long as that lasts. The question is from
// the next sequence on, so the answer of a publisher of which all was heard is the
// end marker alone. It proves nothing else: what follows from a message is an
// audit.
type checker struct {
	cfg  *Config
	addr string
	ask  chan uint64
	told chan checked

	// owned by the goroutine of run
	conn *conn // nil: none yet, or not any more
	kept bool  // it has answered before
}

// checked is an answer to the question from a sequence on.
type checked struct {
	from  uint64
	newer bool // there is something
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
			if c.newer, c.err = k.check(ctx, from); c.err != nil && k.kept && ctx.Err() == nil {
				k.hangUp() // it may have been closed while it was idle
				c.newer, c.err = k.check(ctx, from)
			}
			if k.kept = c.err == nil && !c.newer; !k.kept {
				k.hangUp() // the rest of a replay is not read here
			}
			k.told <- c // one question at a time: there is room
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
		if k.conn, err = dialZMQ(ctx, k.cfg.Dial, k.addr, typeDealer, cfg); err != nil {
			return false, err
		}
		// No PINGs here: an answer is due, and a silent router is given up.
		k.conn.heartbeat, k.conn.quiet = 0, k.cfg.Timeout
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

// look asks whether anything was sent that was not heard, and reports whether it
// did: not while a replay is in progress, which asks the same.
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

// looked judges the answer. What arrived meanwhile is no loss.
func (s *stream) looked(c checked) {
	if c.err != nil {
		s.fault(c.err)
		s.session.check.Reset(s.cfg.Audit) // a port that does not answer is not asked so often
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

// audit asks for what was missed. The caller has the turn.
func (s *stream) audit() {
	v := s.tracker.Audit()
	s.obey(v, message{})
	s.auditing = v.Replay
}
