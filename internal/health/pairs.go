package health

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// pairMemory is how long a failed hand-off is remembered.
const pairMemory = time.Minute

// partner is with whom a worker's latest hand-off failed, and how often that was so
// with nobody else between. Ranks of one worker are one partner: what is wrong with one may
// be wrong with all. The zero value is nobody: ids are not 0.
type partner struct {
	rank  worker.Rank
	at    time.Time
	times int
}

// HandoffFailed takes that the hand-off of KV from one worker to another failed,
// with no word of whose fault it is. Who has failed with two different partners
// within a minute is to blame: it goes aside where there is room. It is returned,
// of two the prefill rank, and nobody's where nobody is to blame yet.
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

// HandoffFailing returns how often the hand-off between the two has failed, not long
// ago, while either of them has not failed with anybody else or served; 0 is never.
// Another failure of the two says nothing new, and one of them with somebody else does.
func (t *Tracker) HandoffFailing(prefill, decode worker.Rank, now time.Time) (times int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(t.find(prefill).failsWith(decode.ID, now), t.find(decode).failsWith(prefill.ID, now))
}

// HandoffServed takes that a hand-off succeeded: neither of the two is under
// suspicion. It acquits these two alone: where each rank has a port of its own, one that
// fails is to be found though its mates serve.
func (t *Tracker) HandoffServed(prefill, decode worker.Rank) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range [...]worker.Rank{prefill, decode} {
		if e := t.find(r); e != nil {
			e.partner = partner{}
		}
	}
}

// explainLocked clears those with whom the one to blame has failed, each with all of its
// ranks, which are one partner: what they remember of it is no reason to blame them at
// their next failure. What they remember of others stays.
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

// failsWithAnother reports whether the latest failure, not long ago, was with
// another worker than this one. e may be nil.
func (e *entry) failsWithAnother(id worker.ID, now time.Time) bool {
	return e != nil && e.partner.rank.ID != 0 && e.partner.rank.ID != id && now.Sub(e.partner.at) < pairMemory
}

// failsWith returns how often the latest failures, not long ago, were with that worker.
// e may be nil.
func (e *entry) failsWith(id worker.ID, now time.Time) int {
	if e == nil || e.partner.rank.ID != id || now.Sub(e.partner.at) >= pairMemory {
		return 0
	}
	return e.partner.times
}

// remember notes a failure. e may be nil.
func (e *entry) remember(with worker.Rank, now time.Time) {
	if e != nil {
		e.partner = partner{with, now, e.failsWith(with.ID, now) + 1}
	}
}
