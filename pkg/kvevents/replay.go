package kvevents

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// endOfReplay marks the end of a replay in place of a sequence.
const endOfReplay = math.MaxUint64

// message is one published batch.
type message struct {
	seq     uint64
	payload []byte
}

// parsePublished reads [topic, sequence, payload].
func parsePublished(frames [][]byte) (message, bool) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return message{}, false
	}
	return message{seq: binary.BigEndian.Uint64(frames[1]), payload: frames[2]}, true
}

// parseReplayed reads ["", sequence, payload] or, from vLLM 0.26 and SGLang
// 0.5.22 on, ["", topic, sequence, payload]: the payload is the last frame and
// the sequence the one before it.
func parseReplayed(frames [][]byte) (message, bool) {
	n := len(frames)
	if n < 2 || n > 4 || len(frames[n-2]) != 8 {
		return message{}, false
	}
	return message{seq: binary.BigEndian.Uint64(frames[n-2]), payload: frames[n-1]}, true
}

// replay asks the router at addr for all messages from a sequence on and hands
// them to each in order, until the end marker, a fault, or quiet for as long as
// the timeout. each returns false to stop early.
func replay(ctx context.Context, dial dialFunc, addr string, from uint64, cfg connConfig, each func(message) bool) error {
	c, err := dialZMQ(ctx, dial, addr, typeDealer, cfg)
	if err != nil {
		return err
	}
	defer c.close()
	defer context.AfterFunc(ctx, c.close)()
	// No PINGs here: an answer is due, and a silent router is given up.
	c.heartbeat, c.quiet = 0, cfg.timeout
	if err := c.send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return fmt.Errorf("kvevents: replay from %s: %w", addr, err)
	}
	var frames [][]byte
	for {
		if frames, err = c.receive(frames); err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
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
		if !each(m) {
			return nil
		}
	}
}

// sleep waits for d or the end of ctx, and reports whether ctx is still live.
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
