package health

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// pairMemory is how long a failed hand-off is remembered.
const pairMemory = time.Minute

// partner is the worker with which an entry's latest hand-off failed, and how often that
// was so without another partner between. Ranks of one worker count as one partner, since
// a fault of one may be a fault of all. The zero value means none: ids are not 0.
type partner struct {
	rank  worker.Rank
	at    time.Time
	times int
}

// HandoffFailed takes that the hand-off of KV from one worker to another failed, for an
// unknown reason. A worker that has failed with two different partners within a minute is
// to blame: it is set aside if there is room, and returned; if both are to blame, the
// prefill rank is returned. The zero Rank means that none is to blame yet.
func (t *Tracker) HandoffFailed(prefill, decode worker.Rank, now time.Time) (blamed worker.Rank) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, d := t.find(prefill), t.find(decode)
	ofPrefill, ofDecode := p.failsWithAnother(decode.ID, now), d.failsWithAnother(prefill.ID, now)
	switch {
	case ofPrefill && !ofDecode:
		t.explainLocked(p, decode.ID)
		p.remember(decode, now)
	case ofDecode && !ofPrefill:
		t.explainLocked(d, prefill.ID)
		d.remember(prefill, now)
	default:
		p.remember(decode, now)
		d.remember(prefill, now)
	}
	if ofDecode {
		blamed = decode
		t.judgeLocked(d, ReasonHandoff, now)
	}
	if ofPrefill {
		blamed = prefill
		t.judgeLocked(p, ReasonHandoff, now)
	}
	return blamed
}

// HandoffFailing returns how often the hand-off between these two has lately failed,
// while at least one of them has neither served nor failed with another partner; 0:
// never. Another failure of the same two would tell nothing new; a failure of one of them
// with another partner would.
func (t *Tracker) HandoffFailing(prefill, decode worker.Rank, now time.Time) (times int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(t.find(prefill).failsWith(decode.ID, now), t.find(decode).failsWith(prefill.ID, now))
}

// HandoffServed takes that a hand-off succeeded, which clears both ranks of suspicion. It
// clears only these two: if each rank has a port of its own, a failing one must be found
// although its mates serve.
func (t *Tracker) HandoffServed(prefill, decode worker.Rank) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range [...]worker.Rank{prefill, decode} {
		if e := t.find(r); e != nil {
			e.partner = partner{}
		}
	}
}

// explainLocked clears the partners of a worker that is to blame, with all their ranks:
// their failures with that worker must not count against them at their next one. Their
// failures with other workers stay.
func (t *Tracker) explainLocked(toBlame *entry, with worker.ID) {
	for _, id := range [...]worker.ID{toBlame.partner.rank.ID, with} {
		for _, e := range (*t.known.Load())[id] {
			t.touchLocked()
			if e.partner.rank.ID == toBlame.rank.ID {
				e.partner = partner{}
			}
		}
	}
}

// failsWithAnother reports whether e's latest failure was lately, and with another worker
// than this one. e may be nil.
func (e *entry) failsWithAnother(id worker.ID, now time.Time) bool {
	return e != nil && e.partner.rank.ID != 0 && e.partner.rank.ID != id && now.Sub(e.partner.at) < pairMemory
}

// failsWith returns how often e has lately failed with that worker, without another
// partner between. e may be nil.
func (e *entry) failsWith(id worker.ID, now time.Time) int {
	if e == nil || e.partner.rank.ID != id || now.Sub(e.partner.at) >= pairMemory {
		return 0
	}
	return e.partner.times
}

// remember records a failed hand-off. e may be nil.
func (e *entry) remember(with worker.Rank, now time.Time) {
	if e != nil {
		e.partner = partner{with, now, e.failsWith(with.ID, now) + 1}
	}
}
