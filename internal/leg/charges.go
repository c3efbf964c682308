package leg

import (
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// charges is what an attempt says of its workers. internal/blame decides which worker is
// charged with what.
type charges struct {
	seen   []Sighting    // what the current step has seen
	avoid  []worker.Rank // the ranks that may be at fault for this attempt's failure
	keep   worker.Rank   // the rank that the next attempt takes again, with another partner; ID 0: none
	probed bool          // this attempt has asked for a probe of a worker that it waits for
}

// Sighting is what was seen of a leg. The two fields name a row of the blame table.
type Sighting struct {
	Leg   blame.Leg
	Sight blame.Sight
}

// Lesson is what a fresh attempt has to know of the failed one.
type Lesson struct {
	Avoid    []worker.Rank // the ranks that may be at fault for the failure
	Keep     worker.Rank   // the rank that the fresh attempt takes again, with another partner; ID 0: none
	Suspects Suspects      // charges that wait for a mate's proof
	Told     int64         // the count of the prompt's tokens with which a worker has contradicted what was expected; 0: none has
	By       worker.Rank   // that worker
	Lost     int           // how many workers the request has lost that were to answer it, in all attempts
}

// AlsoAvoid adds a rank to those that may be at fault. One with ID 0 is none.
func (l *Lesson) AlsoAvoid(r worker.Rank) {
	if r.ID != 0 && !slices.Contains(l.Avoid, r) {
		l.Avoid = append(l.Avoid, r)
	}
}

func (c *charges) saw(l blame.Leg, s blame.Sight) { c.seen = append(c.seen, Sighting{l, s}) }

// shun notes which workers a fresh attempt avoids, as the row of the blame table says.
// The parameter at is the rank that has failed.
func (c *charges) shun(row blame.Row, at worker.Rank, p *Plan) {
	c.avoid, c.keep = c.avoid[:0], worker.Rank{}
	switch row.Avoid {
	case blame.It:
		c.avoid = append(c.avoid, at)
	case blame.Both:
		c.shunPair(p)
	}
}

// shunPair notes that a fresh attempt avoids both workers of a pair. If the hand-off of
// the two has failed not long ago, another failure says nothing new. Then only one of
// them is avoided. The other, which is decode and prefill by turns, is tried with another
// partner: that shows whether it is at fault.
func (c *charges) shunPair(p *Plan) {
	switch {
	case p.Failing > 0 && p.Spare.Prefill && (p.Failing%2 == 1 || !p.Spare.Decode):
		c.keep, c.avoid = p.Decode, append(c.avoid, p.Prefill)
	case p.Failing > 0 && p.Spare.Decode:
		c.keep, c.avoid = p.Prefill, append(c.avoid, p.Decode)
	default:
		c.avoid = append(c.avoid, p.Decode, p.Prefill)
	}
}

// suspicionOf returns the suspect that a failed leg leaves for a fresh attempt to clear
// or to convict. The parameter waited is the time since the pick.
func suspicionOf(row blame.Row, at worker.Rank, p *Plan, waited time.Duration) blame.Suspect[worker.Rank] {
	x := blame.Suspect[worker.Rank]{Worker: at, Charge: row.Charge}
	if row.Pair {
		x.Pair = &[2]worker.Rank{p.Prefill, p.Decode}
		x.Lone = [2]bool{!p.Spare.Prefill, !p.Spare.Decode}
	}
	if row.Sight == blame.Overdue {
		x.Within = waited
	}
	return x
}

// chargeOf returns c, the charge that is made. If c is None but the worker was seen to
// fail, and not only to be slow, it returns Held, so that the pool's rate of refusals and
// errors stays known.
func chargeOf(c, seen blame.Charge) blame.Charge {
	if c == blame.None && seen != blame.None && seen != blame.Slow {
		return blame.Held
	}
	return c
}

// mayDoBetter reports whether another attempt may do better, as the row says. The flag
// mate says that another worker could serve the leg, the flag odd that the leg's worker
// refuses more than its pool.
func mayDoBetter(row blame.Row, p *Plan, mate, odd bool) bool {
	if row.Avoid == blame.Both {
		mate = p.Spare.Prefill || p.Spare.Decode
	}
	switch row.Fresh {
	case blame.Yes:
		return true
	case blame.IfSpare:
		return mate
	case blame.IfOdd:
		return mate && odd
	default:
		return false
	}
}

// suspectAfter returns how long a worker is waited for before it is probed: half of its
// limit, within bounds. A probe costs a worker that is well one answer of its page.
func suspectAfter(limit time.Duration) time.Duration {
	return min(max(limit/2, time.Second), suspectFirst)
}

// How long a worker is waited for before it is probed first, whatever is known of it, and
// then again.
const (
	suspectFirst = 2 * time.Second
	suspectEvery = 5 * time.Second
)
