package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// endOfReplay stands in place of a sequence and marks the end of a replay.
const endOfReplay = math.MaxUint64

// maxReplay bounds the messages of one replay. By default publishers keep 10,000
// (buffer_steps of vLLM and SGLang).
const maxReplay = 1 << 18

// errEndless is final: another replay would go on without end as well.
var errEndless = errors.New("kvevents: the replay has no end")

// budget bounds one replay, whoever answers. Its messages go to the index at once, so the
// budget bounds work, not memory.
type budget struct {
	messages, bytes int
	last            uint64
	any             bool
}

// take counts the next message of a replay. Publishers keep their messages in order, so a
// sequence that goes back means that the replay repeats itself.
func (b *budget) take(m message) error {
	b.messages--
	b.bytes -= len(m.payload)
	back := b.any && m.seq <= b.last
	was := b.last
	b.last, b.any = m.seq, true
	switch {
	case back:
		return fmt.Errorf("%w: message %d after %d", errEndless, m.seq, was)
	case b.messages < 0 || b.bytes < 0:
		return fmt.Errorf("%w: message %d is beyond what is taken of one", errEndless, m.seq)
	}
	return nil
}

// message is one batch as a publisher sends it.
type message struct {
	seq     uint64
	payload []byte
	late    bool // replayed or held back, so the time at which it was sent is unknown
}

// parsePublished reads [topic, sequence, payload].
func parsePublished(frames [][]byte) (message, bool) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return message{}, false
	}
	return message{seq: binary.BigEndian.Uint64(frames[1]), payload: frames[2]}, true
}

// parseReplayed reads ["", sequence, payload] or, from vLLM 0.26 and SGLang 0.5.22 on,
// ["", topic, sequence, payload]. In both the payload is the last frame, and the sequence
// is the frame before it.
func parseReplayed(frames [][]byte) (message, bool) {
	n := len(frames)
	if n < 2 || n > 4 || len(frames[n-2]) != 8 {
		return message{}, false
	}
	return message{seq: binary.BigEndian.Uint64(frames[n-2]), payload: frames[n-1], late: true}, true
}

// replayLimits bound one replay.
type replayLimits struct {
	time  time.Duration
	bytes int // of payloads
}

// replay asks the router at addr for all messages from a sequence on. It calls the
// function each with every message, in order, until the end marker, a fault, or a silence
// of cfg.timeout. False from that function ends the replay early, without an error. A
// replay that exceeds the limits in most or maxReplay, or repeats itself, is an
// errEndless.
func replay(ctx context.Context, dial dialFunc, addr string, from uint64, cfg connConfig, most replayLimits, each func(message) bool) error {
	c, err := dialZMQ(ctx, dial, addr, typeDealer, cfg)
	if err != nil {
		return err
	}
	defer c.close()
	limited, cancel := context.WithTimeout(ctx, most.time)
	defer cancel()
	defer context.AfterFunc(limited, c.close)()
	left := budget{messages: maxReplay, bytes: most.bytes}
	if err := c.send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return fmt.Errorf("kvevents: replay from %s: %w", addr, err)
	}
	var frames [][]byte
	for {
		frames, err = c.receive(frames)
		if err != nil {
			switch {
			case ctx.Err() != nil:
				err = ctx.Err()
			case limited.Err() != nil:
				err = fmt.Errorf("%w: it has gone on for %s", errEndless, most.time)
			}
			return fmt.Errorf("kvevents: replay from %s: %w", addr, err)
		}
		m, ok := parseReplayed(frames)
		if !ok {
			return fmt.Errorf("kvevents: replay from %s: message of %d frames: expected a sequence and a payload", addr, len(frames))
		}
		if m.seq == endOfReplay {
			return nil
		}
		if err := left.take(m); err != nil {
			return fmt.Errorf("kvevents: replay from %s: %w", addr, err)
		}
		if !each(m) {
			return nil
		}
	}
}

// sleep waits for d or the end of ctx. False means that ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
