package journal

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultSize is how many records a journal keeps unless told otherwise.
const DefaultSize = 256

// Handle names one record for later updates. The zero value names none.
type Handle struct{ seq uint64 }

// IsZero reports whether h names no record.
func (h Handle) IsZero() bool { return h.seq == 0 }

// Event is a moment in the life of an attempt, for [Journal.Mark].
type Event uint8

// The events, in the usual order.
const (
	PrefillStarted Event = iota + 1
	PrefillWell
	PrefillEnded
	ResponseHeaders
)

// Journal is a ring of the latest records. Safe for concurrent use. A nil
// Journal takes everything and keeps nothing.
type Journal struct {
	slots []slot // set at construction; each guarded by its own mu
	last  atomic.Uint64
}

type slot struct {
	// mu guards rec. It is a leaf: nothing else is locked while it is held,
	// and the functions given to Add and Update must not call the journal.
	mu  sync.Mutex
	rec Record // rec.Seq 0: the slot has never been used
}

// New returns a journal of the given size; 0 means DefaultSize.
func New(size int) (*Journal, error) {
	if size == 0 {
		size = DefaultSize
	}
	if size < 0 {
		return nil, fmt.Errorf("journal: size %d: expected 0 (for %d) or more", size, DefaultSize)
	}
	return &Journal{slots: make([]slot, size)}, nil
}

// Add takes the next slot and lets fill write the record, which is empty but
// for Seq. fill must be short, must not block and must not keep r.
func (j *Journal) Add(fill func(r *Record)) Handle {
	if j == nil {
		return Handle{}
	}
	seq := j.last.Add(1)
	s := j.slot(seq)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.Seq > seq {
		// The ring went round while this writer waited: it is history already.
		return Handle{seq}
	}
	s.rec = Record{Seq: seq}
	fill(&s.rec)
	s.rec.Seq = seq
	s.rec.clip()
	return Handle{seq}
}

// Update lets change write to the record of h. It returns false, and does not
// call change, when the record is no longer there. The rules of Add's fill hold
// for change.
func (j *Journal) Update(h Handle, change func(r *Record)) bool {
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
	s.rec.clip()
	return true
}

// Mark notes that e happened at the given time. The first mark of an event
// stands. Marks of the prefill leg move Record.Leg along unless it has failed.
func (j *Journal) Mark(h Handle, e Event, at time.Time) bool {
	return j.Update(h, func(r *Record) { r.mark(e, at) })
}

// LegEnd notes that the prefill leg failed or was aborted, and why. The first
// such end stands.
func (j *Journal) LegEnd(h Handle, o LegOutcome, detail string, at time.Time) bool {
	return j.Update(h, func(r *Record) {
		if r.Leg == LegFailed || r.Leg == LegAborted {
			return
		}
		r.Leg, r.LegDetail = o, detail
		setOnce(&r.Timings.PrefillEnded, at.Sub(r.Time))
	})
}

// End notes how the attempt ended: its outcome, the detail of it ("" for none),
// the status the client got (0: none) and when. The first end stands, so that a
// late report cannot hide the cause.
func (j *Journal) End(h Handle, o Outcome, detail string, status int, at time.Time) bool {
	return j.Update(h, func(r *Record) {
		if r.Timings.End != 0 {
			return
		}
		r.Outcome, r.Detail = o, detail
		if status != 0 {
			r.Status = status
		}
		setOnce(&r.Timings.End, at.Sub(r.Time))
	})
}

// Recent appends copies of the latest n records to dst, newest first, and
// returns it. Fewer come back when there are fewer. n ≤ 0 means all.
func (j *Journal) Recent(dst []Record, n int) []Record {
	if j == nil {
		return dst
	}
	if n <= 0 || n > len(j.slots) {
		n = len(j.slots)
	}
	last := j.last.Load()
	for seq := last; seq > 0 && last-seq < uint64(n); seq-- {
		s := j.slot(seq)
		s.mu.Lock()
		// Another number: a writer has the slot and has not filled it yet, or a
		// newer record has come meanwhile. Either way this one is not here.
		if s.rec.Seq == seq {
			dst = append(dst, s.rec)
		}
		s.mu.Unlock()
	}
	return dst
}

// Size returns how many records the journal keeps.
func (j *Journal) Size() int {
	if j == nil {
		return 0
	}
	return len(j.slots)
}

func (j *Journal) slot(seq uint64) *slot { return &j.slots[seq%uint64(len(j.slots))] }

func (r *Record) mark(e Event, at time.Time) {
	d := at.Sub(r.Time)
	leg := LegNone
	switch e {
	case PrefillStarted:
		setOnce(&r.Timings.PrefillStarted, d)
		leg = LegStarted
	case PrefillWell:
		setOnce(&r.Timings.PrefillWell, d)
		leg = LegWell
	case PrefillEnded:
		setOnce(&r.Timings.PrefillEnded, d)
		leg = LegEnded
	case ResponseHeaders:
		setOnce(&r.Timings.ResponseHeaders, d)
	}
	if leg != LegNone && legOrder(leg) > legOrder(r.Leg) {
		r.Leg = leg
	}
}

// legOrder ranks the outcomes so that a late report never takes one back.
func legOrder(l LegOutcome) int {
	switch l {
	case LegNone:
		return 0
	case LegDispatched:
		return 1
	case LegStarted:
		return 2
	case LegWell:
		return 3
	case LegEnded, LegFailed, LegAborted:
		return 4
	default:
		return 0
	}
}

// setOnce keeps the first value. Zero means unset, so an event at the very
// start counts as one nanosecond in.
func setOnce(p *time.Duration, d time.Duration) {
	if *p == 0 {
		*p = max(d, 1)
	}
}

// clip cuts what a client may have made long, and drops the query of a path,
// which may hold anything.
func (r *Record) clip() {
	if i := strings.IndexByte(r.Path, '?'); i >= 0 {
		r.Path = strings.Clone(r.Path[:i])
	}
	for _, s := range []*string{
		&r.RequestID, &r.Model, &r.Namespace, &r.Path,
		&r.TokenReason, &r.Split, &r.Detail, &r.LegDetail,
	} {
		if len(*s) > maxText {
			*s = strings.ToValidUTF8((*s)[:maxText], "") + "…"
		}
	}
}
