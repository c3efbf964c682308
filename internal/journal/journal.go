package journal

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
)

// DefaultSize is how many records a journal keeps unless told otherwise.
const DefaultSize = 256

// Handle names one record for later updates. The zero value names none.
type Handle struct{ seq uint64 }

// IsZero reports whether h names no record.
func (h Handle) IsZero() bool { return h.seq == 0 }

// Journal is a ring of the latest records. Safe for concurrent use. A nil Journal accepts
// all records and keeps none.
type Journal struct {
	slots []slot // set at construction; each guarded by its own mu
	last  atomic.Uint64
}

type slot struct {
	// mu guards rec. No other lock is taken while it is held, and the functions given to
	// Add and Update must not call the journal.
	mu  sync.Mutex
	rec decision.Record // rec.Seq 0: the slot has never been used
}

// New returns a journal of the given size; 0 means DefaultSize.
func New(size int) (*Journal, error) {
	size = cmp.Or(size, DefaultSize)
	if size < 0 {
		return nil, fmt.Errorf("journal: size %d: expected 0 (for %d) or more", size, DefaultSize)
	}
	return &Journal{slots: make([]slot, size)}, nil
}

// Keep copies r into the next slot.
func (j *Journal) Keep(r *decision.Record) Handle {
	return j.put(func(kept *decision.Record) { *kept = *r })
}

// Add calls fill with the empty record of the next slot. fill must be short, must not
// block and must not keep r.
func (j *Journal) Add(fill func(r *decision.Record)) Handle {
	return j.put(func(r *decision.Record) {
		*r = decision.Record{Seq: r.Seq}
		fill(r)
	})
}

// put calls write with the next slot's record, which still holds the old one.
func (j *Journal) put(write func(r *decision.Record)) Handle {
	if j == nil {
		return Handle{}
	}
	seq := j.last.Add(1)
	s := j.slot(seq)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.Seq > seq {
		// The ring has gone round while this writer waited: its record is too old to be
		// kept.
		return Handle{seq}
	}
	s.rec.Seq = seq
	write(&s.rec)
	s.rec.Seq = seq
	s.rec.Clip()
	return Handle{seq}
}

// Update calls change with the record of h. It returns false, without the call, if the
// record is no longer there. The function must keep to the rules of Add's fill.
func (j *Journal) Update(h Handle, change func(r *decision.Record)) bool {
	if j == nil || h.seq == 0 {
		return false
	}
	s := j.slot(h.seq)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.Seq != h.seq {
		return false
	}
	change(&s.rec)
	s.rec.Seq = h.seq
	s.rec.Clip()
	return true
}

// Mark records that e happened at the given time: see [decision.Record.Mark].
func (j *Journal) Mark(h Handle, e decision.Event, at time.Time) bool {
	return j.Update(h, func(r *decision.Record) { r.Mark(e, at) })
}

// LegEnd records that the prefill leg failed or was aborted, and why: see
// [decision.Record.EndLeg].
func (j *Journal) LegEnd(h Handle, o decision.LegOutcome, detail string, at time.Time) bool {
	return j.Update(h, func(r *decision.Record) { r.EndLeg(o, detail, at) })
}

// End records how the attempt ended: see [decision.Record.End].
func (j *Journal) End(h Handle, o decision.Outcome, detail string, status int, at time.Time) bool {
	return j.Update(h, func(r *decision.Record) { r.End(o, detail, status, at) })
}

// Recent appends copies of the latest n records to dst, newest first, and returns it. It
// appends fewer if the journal has fewer. n ≤ 0 means all.
func (j *Journal) Recent(dst []decision.Record, n int) []decision.Record {
	if j == nil {
		return dst
	}
	if n <= 0 {
		n = len(j.slots)
	}
	j.visit(n, func(r *decision.Record) { dst = append(dst, *r) })
	return dst
}

// Visit calls f with each record, newest first. f must keep to the rules of Add's fill, and must
// not change the record.
func (j *Journal) Visit(f func(r *decision.Record)) {
	if j != nil {
		j.visit(len(j.slots), f)
	}
}

// visit calls f with the latest n records, as far as there are so many.
func (j *Journal) visit(n int, f func(r *decision.Record)) {
	last := j.last.Load()
	for seq := last; seq > 0 && last-seq < uint64(min(n, len(j.slots))); seq-- {
		s := j.slot(seq)
		s.mu.Lock()
		// With another number, a writer has taken the slot and not filled it yet, or a
		// newer record is there. In both cases the record with this number is not there.
		if s.rec.Seq == seq {
			f(&s.rec)
		}
		s.mu.Unlock()
	}
}

// Size returns how many records the journal keeps.
func (j *Journal) Size() int {
	if j == nil {
		return 0
	}
	return len(j.slots)
}

func (j *Journal) slot(seq uint64) *slot { return &j.slots[seq%uint64(len(j.slots))] }
