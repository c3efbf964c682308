package replay

import (
	"fmt"
	"slices"
	"time"
)

// Role is what a rank serves.
type Role uint8

// The roles. A fleet has ranks of Prefill, with or without ranks of Decode, or ranks of Whole.
const (
	Prefill Role = iota
	Decode
	Whole // requests served by one rank alone
)

// Speed is how fast a rank is from a time on, as a factor of its stated speed.
type Speed struct {
	From   time.Duration
	Factor float64
}

// Step is what a step takes for its answers, in seconds at factor 1.
type Step struct {
	Base      float64 // if any answer runs
	PerAnswer float64 // for each running answer
	PerBlock  float64 // for each block that running answers hold
}

// Rank is one simulated rank.
type Rank struct {
	Role        Role
	PerToken    float64 // seconds for each prompt token that is computed
	PerPrompt   float64 // seconds for each prompt, whatever its length
	Prompts     int     // computed at once, each at its share of the speed; 0 counts as 1
	Chunk       int     // prompt tokens of a step; 0: whole prompts
	CacheBlocks int     // of the prefix cache; 0: no limit
	Room        int     // blocks that answers, and prompts being computed, may hold; 0: no limit
	Step        Step
	Speeds      []Speed // in order of time; before the first the factor is 1
	Domain      int     // a transfer between two domains is Fleet.Far

	Ahead time.Duration // by which the worker's own clock is ahead of the router's
}

// Factor is the rank's speed at a time.
func (r *Rank) Factor(now time.Duration) float64 {
	f := 1.0
	for _, s := range r.Speeds {
		if s.From > now {
			break
		}
		f = s.Factor
	}
	return f
}

// Transfer is what it takes to bring a prompt's KV from prefill to decode, in seconds.
type Transfer struct {
	Base, PerBlock float64
}

// Fleet is the ranks, and how long what they tell is on its way. A rank's number is its index.
type Fleet struct {
	Ranks          []Rank
	Near, Far      Transfer      // within a domain, between two
	FetchesLacking bool          // decode fetches only the blocks that its cache lacks
	EventDelay     time.Duration // of KV events
	LegDelay       time.Duration // of what legs tell
	ReportEvery    time.Duration // how often each rank reports what it runs; 0: never
}

// Of returns the numbers of the ranks of a role.
func (f *Fleet) Of(role Role) (ranks []int) {
	for i := range f.Ranks {
		if f.Ranks[i].Role == role {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// validate returns the first fault of the fleet, or nil.
func (f *Fleet) validate() error {
	var by [Whole + 1]int
	for i := range f.Ranks {
		r := &f.Ranks[i]
		bad := r.Role > Whole || slices.ContainsFunc(r.Speeds, func(s Speed) bool { return !(s.Factor > 0) })
		if bad || !(min(r.PerToken, r.PerPrompt, r.Step.Base, r.Step.PerAnswer, r.Step.PerBlock) >= 0) || min(r.Chunk, r.CacheBlocks, r.Room) < 0 {
			return fmt.Errorf("rank %d: %+v: expected one of the three roles, speeds above 0, and no number below 0", i, *r)
		}
		by[r.Role]++
	}
	if (by[Whole] > 0) == (by[Prefill] > 0) || by[Decode] > 0 && by[Prefill] == 0 {
		return fmt.Errorf("%d ranks of prefill, %d of decode, %d of whole requests: expected the first two kinds or the last", by[Prefill], by[Decode], by[Whole])
	}
	return nil
}
