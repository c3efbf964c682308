package kvevents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// mark is the note that a dump has of a rank, in JSON: the position of the rank's stream
// at the time of the copy, and what its decoder had learnt.
type mark struct {
	Source    string   `json:"source"` // the mark is of no use for any other source
	Plane     bool     `json:"plane,omitempty"`
	Publisher uint64   `json:"publisher,omitempty"` // on an event plane
	Retired   []uint64 `json:"retired,omitempty"`   // on an event plane, see Cursor.Retired
	Position
	Missing map[string]uint64 `json:"missing,omitempty"` // RankStatus.Missing
	Learnt  learnt            `json:"learnt"`
}

// ReadPosition reads the position of a rank's stream from the rank's note in a dump.
func ReadPosition(note []byte) (Position, error) {
	var m mark
	if err := json.Unmarshal(note, &m); err != nil {
		return Position{}, fmt.Errorf("kvevents: position: %w", err)
	}
	return m.Position, nil
}

// kept is what an earlier process held of a rank. It waits here until the rank's stream
// has proved to be the same as then, or another one.
type kept struct {
	dump     *kvindex.Dump
	rank     kvindex.DumpedRank
	mark     mark
	deadline time.Time
}

// expired is false for nil.
func (k *kept) expired() bool { return k != nil && !time.Now().Before(k.deadline) }

// Resume gives the subscriber the dump of an earlier process. It must be called before
// Run, once. A rank's blocks enter the index only when the rank's own stream has proved,
// by the rules of [Tracker] and [Cursor], to be the one at which the dump stopped; later
// events are then replayed. If the proof fails, the blocks are dropped, as after a
// reconnect. Blocks that were copied longer than Config.Keep ago are left out, and blocks
// that reach that age before they are judged are forgotten. Resume returns how many ranks
// wait, and the errors of those that could not be read.
func (s *Subscriber) Resume(d *kvindex.Dump) (ranks int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	s.saved = make(map[worker.Rank]*kept)
	for _, x := range d.Ranks() {
		k := &kept{dump: d, rank: x, deadline: x.At.Add(s.cfg.Keep)}
		if err := json.Unmarshal(x.Note, &k.mark); err != nil {
			errs = append(errs, fmt.Errorf("kvevents: position of rank %s in the dump: %w", x.Rank, err))
		} else if !k.expired() {
			s.saved[x.Rank] = k
		}
	}
	return len(s.saved), errors.Join(errs...)
}

// wait names a rank of the dump and its deadline. It has no pointer to the dump, which is
// large and should be freed with the last rank that needs it.
type wait struct {
	rank     worker.Rank
	deadline time.Time
}

// waiting returns the ranks from Resume that still wait, the soonest deadline first.
func (s *Subscriber) waiting() []wait {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]wait, 0, len(s.saved))
	for r, k := range s.saved {
		all = append(all, wait{r, k.deadline})
	}
	slices.SortFunc(all, func(a, b wait) int { return a.deadline.Compare(b.deadline) })
	return all
}

// forget gives each rank up at its deadline.
func (s *Subscriber) forget(ctx context.Context, waiting []wait) {
	for _, x := range waiting {
		if !sleep(ctx, time.Until(x.deadline)) {
			return
		}
		r := x.rank
		s.mu.Lock()
		f, unseen := s.ranks[r], s.saved[r] != nil
		delete(s.saved, r)
		s.mu.Unlock()
		if f != nil {
			f.inTurn(f.abandon)
		}
		if unseen {
			s.cfg.Logger.Info("blocks of before the restart forgotten: the rank has not appeared", rankAttrs(r)...)
		}
	}
}

// Dump writes, for each rank whose events are followed, its blocks in the index and the
// position of its stream. Both are of one instant: the rank's events wait meanwhile.
// Blocks from Resume that no stream has judged yet are written again.
func (s *Subscriber) Dump(w *kvindex.DumpWriter) error {
	s.mu.Lock()
	ranks := slices.SortedFunc(maps.Keys(s.ranks), worker.Rank.Compare)
	followers := make([]*follower, len(ranks))
	for i, r := range ranks {
		followers[i] = s.ranks[r]
	}
	saved := slices.SortedFunc(maps.Values(s.saved), func(a, b *kept) int { return a.rank.Rank.Compare(b.rank.Rank) })
	s.mu.Unlock()
	var c kvindex.RankCopy
	for _, f := range followers {
		at, note, err := f.copy(s.cfg.Index, &c)
		if err == nil && note != nil {
			err = w.Add(&c, at, note)
		}
		if err != nil {
			return err
		}
	}
	for _, k := range saved {
		k.dump.Copy(k.rank.Rank, &c)
		if err := w.Add(&c, k.rank.At, k.rank.Note); err != nil {
			return err
		}
	}
	return nil
}

// copy copies the rank. A nil note means that there is no position to resume from.
func (f *follower) copy(index kvindex.Index, c *kvindex.RankCopy) (at time.Time, note []byte, err error) {
	f.inTurn(func() {
		m := mark{Source: f.source.String(), Plane: f.plane != nil}
		if k := f.feed.kept; k != nil {
			k.dump.Copy(k.rank.Rank, c)
			at, note = k.rank.At, k.rank.Note
			return
		}
		var p Position
		var seen bool
		switch {
		case f.feed.gone:
		case f.plane != nil:
			m.Publisher, p, seen = f.plane.cursor.Position()
			m.Retired = f.plane.cursor.Retired()
		default:
			p, seen = f.stream.tracker.Position()
			m.Learnt = f.stream.decoder.learnt()
		}
		if !seen {
			return
		}
		m.Position, m.Missing = p, f.feed.snapshot().Missing.Map()
		err = index.Copy(f.feed.rank, c)
		switch {
		case errors.Is(err, kvindex.ErrUnknownRank): // the rank is about to leave
			err = nil
		case err == nil:
			at = time.Now()
			note, err = json.Marshal(m)
		}
	})
	return at, note, err
}

// inTurn calls do while no event of the rank is judged or applied.
func (f *follower) inTurn(do func()) {
	f.feed.turn.Lock()
	defer f.feed.turn.Unlock()
	do()
}

// leave notes that the rank is about to be detached: from then on the index may hold
// another life of it.
func (f *follower) leave() {
	f.inTurn(func() {
		f.feed.gone = true
		if f.stream != nil {
			f.stream.decoder.Forget()
		}
	})
}

// resume puts the rank's stream at the position of an earlier process. No goroutine may
// follow the rank yet.
func (f *follower) resume(k *kept) {
	m := &k.mark
	if m.Source != f.source.String() || m.Plane != (f.plane != nil) || k.expired() {
		f.feed.log.Info("blocks of before the restart left out: the worker's events come from elsewhere, or they are too old")
		return
	}
	f.feed.keep(k)
	if f.plane != nil {
		f.plane.cursor.Resume(m.Publisher, m.Position, m.Retired)
	} else {
		f.stream.tracker.Resume(m.Position)
	}
}

// abandon gives up the blocks of an earlier process, unless they are being judged. The
// caller holds the turn.
func (f *follower) abandon() {
	switch {
	case f.feed.kept == nil:
	case f.plane != nil:
		f.plane.cursor.Abandon()
		f.feed.keep(nil)
	default:
		f.stream.abandon()
	}
}

func (s *stream) abandon() {
	if s.tracker.Abandon() {
		s.keep(nil)
		s.log.Info("blocks of before the restart forgotten: nothing has proved in time that they are still there")
	}
}

// keep sets the blocks that wait for their proof; nil: none. The caller holds the turn.
func (f *feed) keep(k *kept) {
	f.kept = k
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Kept = 0
	if k != nil {
		f.status.Kept = k.rank.Blocks
	}
}

// restore loads the blocks of an earlier process into the index, and returns what that
// process's decoder had learnt. The caller holds the turn.
func (f *feed) restore() learnt {
	k := f.kept
	f.keep(nil)
	var c kvindex.RankCopy
	k.dump.Copy(k.rank.Rank, &c)
	left, err := c.Load(f.cfg.Index)
	if err != nil {
		f.fault(err)
	}
	f.mu.Lock()
	for why := range NumReasons {
		f.status.Missing[why] += k.mark.Missing[why.String()]
	}
	f.mu.Unlock()
	if left > 0 {
		f.refuse(NoRoom, 1)
	}
	f.cfg.Hooks.Restored(f.rank, c.Blocks()-left)
	f.log.Info("kv blocks of before the restart taken", slog.Int(logkey.Blocks, c.Blocks()-left),
		slog.Int(logkey.LeftOut, left), slog.Duration(logkey.Age, time.Since(k.rank.At)))
	return k.mark.Learnt
}
