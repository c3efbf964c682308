package leg

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// charges are what an attempt says of its workers. Who is charged with what,
// internal/blame says.
type charges struct {
	seen   []Sighting    // in this step
	avoid  []worker.Rank // who may be at fault for this attempt's failure
	keep   worker.Rank   // the rank that the next one takes again, with another partner; ID 0: none
	probed bool          // who is waited for was, for this attempt
	lapses int           // how often who is waited for was late, and nobody else could be tried
}

// Sighting is what was seen of a leg: a row of the blame table.
type Sighting struct {
	Leg   blame.Leg
	Sight blame.Sight
}

// Lesson is what a fresh attempt has to know of this one.
type Lesson struct {
	Avoid    []worker.Rank // who may be at fault for its failure
	Keep     worker.Rank   // the rank that is taken again, with another partner; ID 0: none
	Suspects Suspects      // what waits for a mate's word
}

func (c *charges) saw(l blame.Leg, s blame.Sight) { c.seen = append(c.seen, Sighting{l, s}) }

// shun notes whom a fresh attempt avoids after what the row says of the worker.
func (c *charges) shun(row blame.Row, at worker.Rank, p *Plan) {
	c.avoid, c.keep = c.avoid[:0], worker.Rank{}
	switch row.Avoid {
	case blame.It:
		c.avoid = append(c.avoid, at)
	case blame.Both:
		c.shunPair(p)
	}
}

// shunPair has both workers of a pair avoided. Where the two have failed not long ago
// another failure of theirs says nothing new: one of them, decode and prefill by turns, is
// tried with somebody else, which shows whether it is that one.
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

// lapsed counts a leg that has taken too long, and reports whether it has done so several
// times over.
func (c *charges) lapsed() bool {
	c.lapses++
	return c.lapses >= stuckLapses
}

// stuckLapses is how many times what a leg may take a worker is waited for before it is
// charged, where nobody else can be tried.
const stuckLapses = 3

// suspicionOf is what waits for a fresh attempt's word: it may show whose fault it was.
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

// chargeOf is what a worker is charged with. A refusal or an error of which it is not
// charged counts all the same, so that its pool's rate of them stays known.
func chargeOf(c, seen blame.Charge) blame.Charge {
	if c == blame.None && seen != blame.None && seen != blame.Slow {
		return blame.Held
	}
	return c
}

// mayDoBetter reports whether another attempt may do better by what the row says; mate says
// that the leg could be tried elsewhere, odd that its worker refuses more than its pool.
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

func sameWorker(a, b worker.Rank) bool { return a.ID == b.ID }

// suspectAfter is how long a worker is waited for before it is probed: half of what
// it may take, and most at most.
func suspectAfter(limit, most time.Duration) time.Duration {
	return min(max(limit/2, time.Second), most)
}

// When workers are probed for one request.
const (
	suspectPrefill = 2 * time.Second // so long it is waited for at most, though nothing is learned of it
	suspectEvery   = 5 * time.Second
)
