package policies

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
)

// Rival is another's way to choose.
type Rival struct {
	Name, What string
	new        func(*view) func(*replay.Request) int
}

// The thresholds of cache-aware, SGLang's gateway's own defaults.
const (
	matchedPart = 0.3 // of a prompt, from which on it follows its match
	apartBy     = 64  // requests between the busiest and the idlest rank, and
	apartTimes  = 1.5 // times as many, from which on load alone counts
)

// waitedPart is the part of a prompt for whose cache wait-for-cached waits. Without it, all that
// begin with one system prompt would wait for one rank.
const waitedPart = 0.5

// Rivals returns all of them.
func Rivals() []Rival {
	return []Rival{
		{"least-request", "of two ranks drawn the one with fewer requests in flight, as Envoy does", leastRequest},
		{"lmetric", "(uncached + queued tokens) × (requests in flight + 1), the least wins (arXiv 2603.15202)", lmetric},
		{"wait-for-cached", "the rank that has most of the prompt, however long it is busy, if that is half of it; else the fewest queued tokens", waitForCached},
		{"cache-aware", "the rank that was sent the most like the prompt, if that is 30 % of it and loads differ little; else the fewest requests", cacheAware},
	}
}

// New returns the rival's chooser for a fleet.
func (r *Rival) New(f *replay.Fleet, blockTokens int, seed uint64) replay.Chooser {
	n := len(f.Ranks)
	v := &view{
		block: blockTokens, decodes: f.Of(replay.Decode), rng: rand.New(rand.NewPCG(seed, 2)), open: map[int]int{},
		requests: make([]int, n), queued: make([]int, n), held: make([]map[replay.Block]bool, n),
	}
	v.ranks = append(f.Of(replay.Prefill), f.Of(replay.Whole)...)
	for i := range v.held {
		v.held[i] = map[replay.Block]bool{}
	}
	v.deaf = r.Name == "cache-aware"
	v.choose = r.new(v)
	return v
}

// view is what a rival knows.
type view struct {
	block          int
	ranks, decodes []int
	rng            *rand.Rand
	deaf           bool // hears no KV events
	choose         func(*replay.Request) int

	open     map[int]int // uncached prompt tokens of requests whose prompt is not computed yet
	requests []int       // in flight, by rank
	queued   []int       // prompt tokens in flight that are not computed yet, by rank
	held     []map[replay.Block]bool
}

// Choose implements replay.Chooser.
func (v *view) Choose(_ time.Duration, number int, r *replay.Request) (replay.Choice, error) {
	c := replay.Choice{Rank: v.choose(r)}
	c.Believed = v.overlap(c.Rank, r)
	v.open[number] = v.uncached(c.Rank, r)
	v.queued[c.Rank] += v.open[number]
	v.requests[c.Rank]++
	for _, b := range r.Blocks {
		v.held[c.Rank][b] = true
	}
	if len(v.decodes) > 0 {
		c.Decode = v.least(v.decodes, func(i int) float64 { return float64(v.requests[i]) })
		v.requests[c.Decode]++
	}
	return c, nil
}

// Leg implements replay.Chooser.
func (v *view) Leg(_ time.Duration, l replay.Leg) error {
	if l.Role == replay.Prefill && l.Moment == replay.Ended || l.Role == replay.Whole && l.Moment == replay.FirstToken {
		v.queued[l.Rank] -= v.open[l.Request]
		delete(v.open, l.Request)
	}
	if l.Moment == replay.Ended {
		v.requests[l.Rank]--
	}
	return nil
}

// Events implements replay.Chooser.
func (v *view) Events(_ time.Duration, e replay.Events) error {
	if v.deaf {
		return nil
	}
	for _, b := range e.Stored {
		v.held[e.Rank][b] = true
	}
	for _, b := range e.Removed {
		delete(v.held[e.Rank], b)
	}
	return nil
}

// Report implements replay.Chooser.
func (v *view) Report(time.Duration, replay.Report) error { return nil }

func (v *view) overlap(rank int, r *replay.Request) int {
	for i, b := range r.Blocks {
		if !v.held[rank][b] {
			return i
		}
	}
	return len(r.Blocks)
}

func (v *view) uncached(rank int, r *replay.Request) int {
	return r.Tokens - v.overlap(rank, r)*v.block
}

// least returns the rank with the least value, one of several drawn.
func (v *view) least(ranks []int, of func(int) float64) int {
	best, lowest, seen := -1, math.Inf(1), 0
	for _, i := range ranks {
		switch x := of(i); {
		case x < lowest || best < 0:
			best, lowest, seen = i, x, 1
		case x == lowest:
			seen++
			if v.rng.IntN(seen) == 0 {
				best = i
			}
		}
	}
	return best
}

func leastRequest(v *view) func(*replay.Request) int {
	return func(*replay.Request) int {
		a, b := v.ranks[v.rng.IntN(len(v.ranks))], v.ranks[v.rng.IntN(len(v.ranks))]
		if v.requests[b] < v.requests[a] {
			return b
		}
		return a
	}
}

func lmetric(v *view) func(*replay.Request) int {
	return func(r *replay.Request) int {
		return v.least(v.ranks, func(i int) float64 {
			return float64(v.uncached(i, r)+v.queued[i]) * float64(v.requests[i]+1)
		})
	}
}

func waitForCached(v *view) func(*replay.Request) int {
	return func(r *replay.Request) int {
		most := 0
		for _, i := range v.ranks {
			most = max(most, v.overlap(i, r))
		}
		if float64(most*v.block) < waitedPart*float64(r.Tokens) {
			most = 0
		}
		return v.least(v.ranks, func(i int) float64 {
			if v.overlap(i, r) < most {
				return math.Inf(1)
			}
			return float64(v.queued[i])
		})
	}
}

func cacheAware(v *view) func(*replay.Request) int {
	return func(r *replay.Request) int {
		low, high, match := math.MaxInt, 0, v.ranks[0]
		for _, i := range v.ranks {
			low, high = min(low, v.requests[i]), max(high, v.requests[i])
			if v.overlap(i, r) > v.overlap(match, r) {
				match = i
			}
		}
		apart := high-low > apartBy && float64(high) > apartTimes*float64(low)
		if !apart && float64(v.overlap(match, r)*v.block) > matchedPart*float64(r.Tokens) {
			return match
		}
		return v.least(v.ranks, func(i int) float64 { return float64(v.requests[i]) })
	}
}
