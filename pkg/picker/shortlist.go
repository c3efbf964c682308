package picker

import (
	"math"
	"math/bits"
)

// ShortlistLen is how many candidates a Shortlist keeps.
const ShortlistLen = 16

// Shortlist keeps the cheapest candidates of one pick, cheapest first, to show later
// what a decision was made of. A table of all candidates would take longer than the
// pick.
type Shortlist struct {
	n        int
	cost     [ShortlistLen]float64
	position [ShortlistLen]int32
}

// Len returns how many candidates are kept.
func (s *Shortlist) Len() int { return s.n }

// Position returns the position of the i-th cheapest, counted from 0, in
// Candidates.Ranks.
func (s *Shortlist) Position(i int) int { return int(s.position[i]) }

func (s *Shortlist) reset() { s.n = 0 }

// offer keeps the candidate if it is cheap enough. It returns the cost at or above
// which no later candidate is kept. Of candidates with equal costs the earlier ones are
// kept.
func (s *Shortlist) offer(i int, cost float64) (bar float64) {
	if s.n == ShortlistLen {
		if cost >= s.cost[ShortlistLen-1] {
			return s.cost[ShortlistLen-1]
		}
		s.n--
	}
	j := s.n
	for ; j > 0 && cost < s.cost[j-1]; j-- {
		s.cost[j], s.position[j] = s.cost[j-1], s.position[j-1]
	}
	s.cost[j], s.position[j] = cost, int32(i)
	s.n++
	if s.n == ShortlistLen {
		return s.cost[ShortlistLen-1]
	}
	return math.Inf(1)
}

// near fills the shortlist in modes other than kv.
func (c *Candidates) near(m Mode) {
	byLoad := m == LeastLoaded || m == PowerOfTwo
	bar := math.Inf(1)
	for w, in := range c.in {
		for ; in != 0; in &= in - 1 {
			i := w*chunk + bits.TrailingZeros64(in)
			cost := 0.0
			if byLoad {
				cost = c.loadCost(i)
			}
			if cost < bar {
				bar = c.Near.offer(i, cost)
			}
		}
		if !byLoad && c.Near.n == ShortlistLen {
			return
		}
	}
}
