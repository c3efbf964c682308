package picker

import (
	"math"
	"math/rand/v2"
)

// maxThrows is how often sample throws before it computes all weights. It is so high
// that throwing seldom fails when it is the cheaper way.
const maxThrows = 96

// sample draws by softmax over -(cost / (max - min)) / temperature: candidate i has the
// weight exp((min - cost) × steep), which is at most 1. A throw draws a candidate
// uniformly, and accepts it with its weight as the probability. So an accepted
// candidate is drawn by the weights, and thousands of exponentials need not be
// computed. If a few candidates have nearly all the weight, most throws fail. Then all
// weights are computed. This changes no probability, since every throw is independent
// of the earlier ones.
func (k *coster) sample(n int, temperature float64, rng *rand.Rand) (int, float64) {
	lowest, highest := k.bounds()
	steep := 0.0 // if all costs are equal: uniform
	if highest > lowest {
		// It must not be infinite, since zero times infinity is not a number.
		steep = min(1/(highest-lowest)/temperature, 1e300)
	}
	var t terms
	for range maxThrows {
		i := k.c.in.nth(rng.IntN(n))
		k.of(i, &t)
		if rng.Float64() < math.Exp((lowest-t.cost)*steep) {
			return i, t.cost
		}
	}
	var total, cost float64
	picked := -1
	k.each(func(i int, c float64) {
		w := math.Exp((lowest - c) * steep)
		total += w
		if picked < 0 || rng.Float64()*total < w {
			picked, cost = i, c
		}
	})
	return picked, cost
}

// bounds returns the lowest and the highest cost. It offers all candidates to Near.
func (k *coster) bounds() (lowest, highest float64) {
	lowest, highest = math.Inf(1), math.Inf(-1)
	near, bar := k.c.Near, math.Inf(1)
	var buf costs
	for w, in := range k.c.in {
		if in == 0 {
			continue
		}
		n := k.fill(w, &buf)
		for j, cost := range buf[:n] {
			if in>>j&1 == 0 {
				continue
			}
			if cost < lowest {
				lowest = cost
			}
			if cost > highest {
				highest = cost
			}
			if near != nil && cost < bar {
				bar = near.offer(w*chunk+j, cost)
			}
		}
	}
	return lowest, highest
}
