package picker

import (
	"errors"
	"math"
	"math/rand/v2"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// ErrNoCandidate says that there was nobody to pick from.
var ErrNoCandidate = errors.New("picker: no candidate")

// Decision is the outcome of a pick.
type Decision struct {
	Index      int // of the picked candidate
	Rank       worker.Rank
	Cost       float64 // kv: in blocks; least-loaded and power-of-two: requests in flight; else 0
	Reason     Reason
	Candidates int    // how many there were
	Cursor     uint64 // the round-robin cursor to keep if the pick is committed
}

// Pick chooses one candidate. It allocates nothing and keeps none of its
// arguments. rng is needed in every mode but round-robin; Pick is safe for
// concurrent use as far as rng is not shared. The error is ErrNoCandidate.
func Pick(req *Request, cands []Candidate, p *Params, cursor uint64, rng *rand.Rand) (Decision, error) {
	n := len(cands)
	if n == 0 {
		return Decision{Index: -1, Cursor: cursor}, ErrNoCandidate
	}
	d := Decision{Candidates: n, Cursor: cursor}
	switch p.Mode {
	case RoundRobin:
		d.Index, d.Reason = int(cursor%uint64(n)), NextInTurn
		d.Cursor = cursor + 1
	case Random:
		d.Index, d.Reason = rng.IntN(n), RandomDraw
	case LeastLoaded:
		d.Index, d.Reason = leastLoaded(cands, max(p.BlockSize, 1), rng), LeastLoad
		d.Cost = loadCost(&cands[d.Index])
	case PowerOfTwo:
		d.Index, d.Reason = twoChoices(cands, max(p.BlockSize, 1), rng), TwoChoices
		d.Cost = loadCost(&cands[d.Index])
	default:
		k := newCoster(req, cands, p)
		if p.Temperature > 0 && n > 1 {
			d.Index, d.Cost = k.sample(cands, p.Temperature, rng)
			d.Reason = Sampled
		} else {
			var ties uint64
			d.Index, d.Cost, ties = k.lowest(cands, rng)
			d.Reason = LowestCost
			if ties > 1 {
				d.Reason = Tie
			}
		}
	}
	if n == 1 {
		d.Reason = OnlyCandidate
	}
	d.Rank = cands[d.Index].Rank
	return d, nil
}

// lowest returns the candidate of the lowest cost, one of the equals at random.
func (k *coster) lowest(cands []Candidate, rng *rand.Rand) (best int, lowest float64, ties uint64) {
	lowest = math.Inf(1)
	var draw reservoir
	straight := k.straight()
	var t terms
	for i := range cands {
		c := &cands[i]
		var cost float64
		if straight && c.plain() {
			cost = k.cost(c)
		} else {
			k.of(c, &t)
			cost = t.cost
		}
		if cost > lowest {
			continue
		}
		if cost < lowest {
			best, lowest = i, cost
			draw = reservoir{seen: 1}
		} else if draw.take(rng) {
			best = i
		}
	}
	return best, lowest, draw.seen
}

// reservoir draws one of a run of equals of unknown length, each with the same
// chance. That item j is the last one taken by then has chance 1/j, so after
// taking item i the next one to take is item floor(i/U)+1, U uniform in (0, 1]:
// one draw for each item taken, about ln(n) of them, not one for each item.
type reservoir struct {
	seen uint64 // items so far, the first included
	next uint64 // number of the item to take next; 0: not drawn yet
}

// take counts one more item and reports whether it replaces the one held.
func (r *reservoir) take(rng *rand.Rand) bool {
	r.seen++
	return r.seen >= r.next && r.draw(rng)
}

// draw is the rare half of take, apart from it so that take can be inlined.
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

// sample draws by softmax over -(cost / (max - min)) / temperature. The lowest
// cost is taken off first, which changes no chance and keeps the powers from
// underflowing all at once.
func (k *coster) sample(cands []Candidate, temperature float64, rng *rand.Rand) (int, float64) {
	lowest, highest := math.Inf(1), math.Inf(-1)
	var t terms
	for i := range cands {
		k.of(&cands[i], &t)
		lowest, highest = min(lowest, t.cost), max(highest, t.cost)
	}
	steep := 0.0 // all equal: uniform
	if highest > lowest {
		steep = 1 / (highest - lowest) / temperature
	}
	var total, cost float64
	picked := 0
	for i := range cands {
		k.of(&cands[i], &t)
		w := math.Exp((lowest - t.cost) * steep)
		total += w
		if rng.Float64()*total < w {
			picked, cost = i, t.cost
		}
	}
	return picked, cost
}

// loadCost is the cost of the modes that look at load alone.
func loadCost(c *Candidate) float64 {
	if c.LoadUnknown {
		return 0
	}
	return float64(c.ActiveRequests)
}

// moreLoaded compares by requests in flight, then by booked tokens: negative
// when a is the less loaded.
func moreLoaded(a, b *Candidate, blockSize int) int64 {
	if d := loadCost(a) - loadCost(b); d != 0 {
		return int64(d)
	}
	return bookedTokens(a, blockSize) - bookedTokens(b, blockSize)
}

func bookedTokens(c *Candidate, blockSize int) int64 {
	if c.LoadUnknown {
		return 0
	}
	return c.ActivePrefillTokens + c.ActiveDecodeBlocks*int64(blockSize)
}

func leastLoaded(cands []Candidate, blockSize int, rng *rand.Rand) int {
	best, draw := 0, reservoir{seen: 1}
	for i := 1; i < len(cands); i++ {
		switch d := moreLoaded(&cands[i], &cands[best], blockSize); {
		case d < 0:
			best, draw = i, reservoir{seen: 1}
		case d == 0 && draw.take(rng):
			best = i
		}
	}
	return best
}

// twoChoices draws two different candidates and returns the less loaded one,
// the first drawn of equals.
func twoChoices(cands []Candidate, blockSize int, rng *rand.Rand) int {
	n := len(cands)
	if n == 1 {
		return 0
	}
	a, b := rng.IntN(n), rng.IntN(n-1)
	if b >= a {
		b++
	}
	if moreLoaded(&cands[b], &cands[a], blockSize) < 0 {
		return b
	}
	return a
}
