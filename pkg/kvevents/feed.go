package kvevents

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// reset drops the rank's blocks.
func (s *stream) reset(why Cause) {
	_ = s.cfg.Index.Clear(s.rank) // attached for as long as the stream runs
	if why == Restarted {
		s.decoder.Reset()
	}
	s.mu.Lock()
	s.status.Resets++
	s.mu.Unlock()
	s.cfg.Hooks.reset(s.rank, why)
	s.log.Info("kv blocks of the rank dropped", slog.String("cause", why.String()))
}

// apply decodes a message and gives its events to the index.
func (s *stream) apply(m message) {
	b, err := s.decoder.Decode(m.payload)
	if err != nil {
		s.fault(fmt.Errorf("kvevents: message %d of %s: %w", m.seq, s.src.addr, err))
	}
	blocks := 0
	for i := range b.Events {
		e := &b.Events[i]
		var err error
		switch e.Kind {
		case Stored:
			err = s.cfg.Index.Store(s.rank, e.Stored)
			blocks += len(e.Stored.Blocks)
		case Removed:
			err = s.cfg.Index.Remove(s.rank, e.Removed)
			blocks += len(e.Removed.Blocks)
		case Cleared:
			err = s.cfg.Index.Clear(s.rank)
			s.tracker.Cleared()
		}
		switch {
		case errors.Is(err, kvindex.ErrUnknownParent):
			b.Refused[UnknownParent]++
		case errors.Is(err, kvindex.ErrConflict):
			b.Refused[HashConflict]++
		case err != nil:
			s.fault(err)
		}
	}
	for why, n := range b.Refused {
		if n > 0 {
			s.refuse(Reason(why), n)
		}
	}
	if n := b.Refused[BlockSizeMismatch]; n > 0 && !s.warned {
		s.warned = true
		s.log.Warn("kv events are of another block size than the worker is registered with",
			slog.Uint64("block_size", uint64(s.src.blockSize)))
	}
	s.mu.Lock()
	s.status.Messages++
	s.status.Events += uint64(len(b.Events))
	s.mu.Unlock()
	s.cfg.Hooks.applied(s.rank, len(b.Events), blocks)
}
