package picker

import (
	"errors"
	"math"
	"math/bits"
	"math/rand/v2"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// ErrNoCandidate says that there was no candidate that may be picked.
var ErrNoCandidate = errors.New("picker: no candidate")

// Decision is the result of a pick.
type Decision struct {
	Index      int // of the picked candidate in Ranks; -1 after an error
	Rank       worker.Rank
	Cost       float64 // kv: in seconds, or in blocks; least-loaded and power-of-two: requests in flight; other modes: 0
	Reason     Reason
	Candidates int    // how many could be picked
	Overloaded int    // how many were over a threshold; they could not be picked, unless all were and ServeOverloaded is set
	Cursor     uint64 // the round-robin cursor to keep if the pick is committed

	OverlapBlocks  uint32 // blocks of the prompt that the picked candidate has on the device
	MostOverlap    uint32 // the most such blocks of any candidate that could be picked
	MostAt         int    // that candidate's position; -1: none has any
	OutOverlap     uint32 // the most of any that could not be picked, if that is more; else 0
	OutAt          int    // that candidate's position
	UncachedTokens int64  // tokens of the prompt that the picked candidate has to prefill: a booking adds them
	Late           bool   // no candidate is believed to keep the request's target
}

// Pick chooses one candidate. It allocates nothing once c has been used, and keeps none
// of its arguments. Every mode but round-robin needs rng. Concurrent calls are safe if
// they share neither rng nor c. The error is ErrNoCandidate or an *OverloadedError.
func Pick(req *Request, c *Candidates, p *Params, cursor uint64, rng *rand.Rand) (Decision, error) {
	d := Decision{Index: -1, Cursor: cursor}
	if c.Near != nil {
		c.Near.reset()
	}
	n, err := c.prepare(p, &d)
	if err != nil {
		return d, err
	}
	d.Candidates = n
	k := newCoster(req, c, p)
	switch p.Mode {
	case RoundRobin:
		d.Index, d.Reason = c.in.nth(int(cursor%uint64(n))), NextInTurn
		d.Cursor = cursor + 1
	case Random:
		d.Index, d.Reason = c.in.nth(rng.IntN(n)), RandomDraw
	case LeastLoaded:
		d.Index, d.Reason = c.leastLoaded(k.blockSize, rng), LeastLoad
		d.Cost = c.loadCost(d.Index)
	case PowerOfTwo:
		d.Index, d.Reason = c.twoChoices(n, k.blockSize, rng), TwoChoices
		d.Cost = c.loadCost(d.Index)
	default:
		if p.Temperature > 0 && n > 1 {
			d.Index, d.Cost = k.sample(n, p.Temperature, rng)
			d.Reason = Sampled
		} else {
			var ties uint64
			d.Index, d.Cost, ties = k.lowest(rng)
			d.Reason = LowestCost
			d.Late = k.seconds && d.Cost >= tooLate
			if d.Late {
				d.Cost -= tooLate
			}
			if ties > 1 {
				d.Reason = Tie
			}
		}
	}
	if n == 1 {
		d.Reason = OnlyCandidate
	}
	if c.Near != nil && p.Mode != KV {
		c.near(p.Mode)
	}
	d.Rank, d.OverlapBlocks = c.Ranks[d.Index], at(c.Overlap, d.Index)
	d.UncachedTokens = k.uncached(d.Index)
	c.mostOverlap(&d)
	return d, nil
}

// mostOverlap finds who has the greatest overlap, of those that can be picked and of the others.
func (c *Candidates) mostOverlap(d *Decision) {
	at := -1
	var most, out uint32
	for i, o := range c.Overlap {
		switch {
		case o <= most:
		case c.in.Has(i):
			most, at = o, i
		case o > out:
			out, d.OutAt = o, i
		}
	}
	d.MostOverlap, d.MostAt = most, at
	if out > most {
		d.OutOverlap = out
	}
}

// lowest returns a candidate with the lowest cost, drawn at random if several have it,
// and how many have it.
func (k *coster) lowest(rng *rand.Rand) (best int, lowest float64, ties uint64) {
	best, lowest = -1, math.Inf(1)
	near, worst := k.c.Near, math.Inf(1) // a cost of worst or more is of no use to near
	if near == nil {
		worst = math.Inf(-1)
	}
	bar := math.Inf(1) // a higher cost is of no use to lowest or near
	var draw reservoir
	var buf costs
	for w, in := range k.c.in {
		if in == 0 {
			continue
		}
		if k.c.Taint == nil { // whose factor may make any cost lower
			k.bar = bar
		}
		n := k.fill(w, &buf)
		for j, cost := range buf[:n] {
			if cost > bar || in>>j&1 == 0 {
				continue
			}
			i := w*chunk + j
			switch {
			case cost < lowest || best < 0:
				best, lowest = i, cost
				draw = reservoir{seen: 1}
				bar = barOf(lowest, worst)
			case cost == lowest && k.tie(&draw, i, best, rng):
				best = i
			}
			if cost < worst {
				worst = near.offer(i, cost)
				bar = barOf(lowest, worst)
			}
		}
	}
	return best, lowest, draw.seen
}

// tie reports whether candidate i takes the place of the best one so far, which has the same cost.
func (k *coster) tie(draw *reservoir, i, best int, rng *rand.Rand) bool {
	if k.seconds {
		of, least := at(k.c.Lately, i), at(k.c.Lately, best)
		if of < least {
			*draw = reservoir{seen: 1}
			return true
		}
		if of > least {
			return false
		}
	}
	return draw.take(rng)
}

// barOf returns the highest cost that is still of use: the lowest cost found, or the
// next one below worst. In busy pools thousands of ranks have the same cost, so costs
// equal to worst have to be skipped as fast as higher ones.
func barOf(lowest, worst float64) float64 {
	return max(lowest, math.Nextafter(worst, math.Inf(-1)))
}

// reservoir draws one of a sequence of equal candidates whose number is not known in
// advance, each with the same probability. After item i was taken, no other is taken up
// to item j with probability i/j. So the next one to take is item floor(i/U)+1, with U
// uniform in (0, 1]: this needs one random number for each item taken, about ln(n), not
// one for each item.
type reservoir struct {
	seen uint64 // items so far, including the first
	next uint64 // number of the next item to take; 0: not drawn yet
}

// take counts one more item, and reports whether it replaces the item held.
func (r *reservoir) take(rng *rand.Rand) bool {
	r.seen++
	return r.seen >= r.next && r.draw(rng)
}

// draw is the rare part of take, a function of its own so that take can be inlined.
func (r *reservoir) draw(rng *rand.Rand) bool {
	if r.next == 0 {
		r.next = after(r.seen-1, rng)
	}
	if r.seen != r.next {
		return false
	}
	r.next = after(r.seen, rng)
	return true
}

func after(i uint64, rng *rand.Rand) uint64 {
	f := float64(i) / (1 - rng.Float64())
	if f >= 1<<62 {
		return math.MaxUint64
	}
	return uint64(f) + 1
}

// loadCost returns the cost in least-loaded and power-of-two.
func (c *Candidates) loadCost(i int) float64 {
	if c.LoadUnknown.Has(i) {
		return 0
	}
	return c.Requests[i]
}

// moreLoaded compares requests in flight, then booked tokens. Its result is negative if
// a is less loaded than b, positive if it is more loaded, and else 0.
func (c *Candidates) moreLoaded(a, b int, blockSize float64) float64 {
	if d := c.loadCost(a) - c.loadCost(b); d != 0 {
		return d
	}
	return c.bookedTokens(a, blockSize) - c.bookedTokens(b, blockSize)
}

func (c *Candidates) bookedTokens(i int, blockSize float64) float64 {
	if c.LoadUnknown.Has(i) {
		return 0
	}
	return c.Prefill[i] + float64(c.Decode[i]*blockSize)
}

func (c *Candidates) leastLoaded(blockSize float64, rng *rand.Rand) int {
	best := -1
	var draw reservoir
	var requests, booked float64 // of best
	for w, in := range c.in {
		for ; in != 0; in &= in - 1 {
			i := w*chunk + bits.TrailingZeros64(in)
			r := c.loadCost(i)
			if best >= 0 && r > requests {
				continue
			}
			t := c.bookedTokens(i, blockSize)
			switch {
			case best < 0 || r < requests || t < booked:
				best, requests, booked, draw = i, r, t, reservoir{seen: 1}
			case t == booked && draw.take(rng):
				best = i
			}
		}
	}
	return best
}

// twoChoices draws two different candidates and returns the less loaded one. If both
// are equal it returns the first.
func (c *Candidates) twoChoices(n int, blockSize float64, rng *rand.Rand) int {
	if n == 1 {
		return c.in.nth(0)
	}
	a, b := rng.IntN(n), rng.IntN(n-1)
	if b >= a {
		b++
	}
	a, b = c.in.nth(a), c.in.nth(b)
	if c.moreLoaded(b, a, blockSize) < 0 {
		return b
	}
	return a
}
