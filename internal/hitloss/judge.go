package hitloss

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The rule by which a rank is found that lies. A prompt is short if the rank delivered less
// than half of what its events told, and whole else. A rank's score begins at 0 and is never
// below; a short prompt adds shortAdds, a whole one takes 1. At findAt the rank lies, and at 0
// again it is healed. So a rank that delivers nothing is found by its fifth prompt, and one of
// which every second prompt is short by its thirteenth on the mean. While one prompt in twenty
// is short by chance, a true rank is found once in more than 60,000 prompts (with a false
// alarm at x for which 0.05·e^(4x) + 0.95·e^(-x) = 1, the mean time is over e^(20x), x = 0.55).
const (
	shortAdds = 4
	findAt    = 20
	// fades is how much an older prompt counts less with each new one.
	fades = 1.0 / 16
	// leastBlocks is of how many told blocks a prompt is judged: engines round by one.
	leastBlocks = 2
	// keptFor is how long a rank is remembered of which no more prompts are judged: it has
	// then told of nothing that it could have delivered.
	keptFor = time.Hour
)

// Judge finds ranks that hold less than their events say. The zero value is ready.
type Judge struct {
	ranks map[worker.Rank]*suspect // with a score above 0
}

// suspect is what is kept of a rank. Its sums begin with the short prompt that made it one.
type suspect struct {
	score           int
	found, last     time.Time // found is zero: it is not believed to lie
	told, delivered float64   // tokens, older ones counting less
	prompts, short  int
}

// Doubt is a rank that is believed to lie.
type Doubt struct {
	Rank            worker.Rank
	Since           time.Time
	Told, Delivered int64 // tokens lately, older ones counting less
	Prompts, Short  int   // since it was first short: how many were judged, and how many were short
}

// Verdict is what a prompt has changed.
type Verdict uint8

// The verdicts.
const (
	Same Verdict = iota
	Found
	Healed
)

// Judgeable reports whether a prompt says anything of its rank: if its events told of enough
// of it.
func Judgeable(told, blockSize int64) bool { return told >= leastBlocks*max(blockSize, 1) }

// Add judges one prompt of a rank: of how many of its tokens the rank's events told, and how
// many were delivered. Prompts whose loss has another cause than StaleIndex are not to be
// given.
func (j *Judge) Add(r worker.Rank, told, delivered int64, now time.Time) Verdict {
	j.expire(now)
	s, short := j.ranks[r], 2*delivered < told
	if s == nil {
		if !short {
			return Same
		}
		if j.ranks == nil {
			j.ranks = make(map[worker.Rank]*suspect)
		}
		s = new(suspect)
		j.ranks[r] = s
	}
	s.last = now
	s.told += float64(told) - fades*s.told
	s.delivered += float64(min(delivered, told)) - fades*s.delivered
	s.prompts++
	if short {
		s.short++
		s.score = min(s.score+shortAdds, findAt)
	} else {
		s.score--
	}
	switch lies := !s.found.IsZero(); {
	case s.score == findAt && !lies:
		s.found = now
		return Found
	case s.score == 0:
		delete(j.ranks, r)
		if lies {
			return Healed
		}
	}
	return Same
}

func (j *Judge) expire(now time.Time) {
	maps.DeleteFunc(j.ranks, func(_ worker.Rank, s *suspect) bool { return now.Sub(s.last) >= keptFor })
}

// Keep forgets the ranks for which it returns false.
func (j *Judge) Keep(known func(worker.Rank) bool) {
	maps.DeleteFunc(j.ranks, func(r worker.Rank, _ *suspect) bool { return !known(r) })
}

// Discounts returns of each rank that lies which part of its overlap is to count: what it
// delivered of what its events told. nil: none lies.
func (j *Judge) Discounts() map[worker.Rank]float64 {
	var out map[worker.Rank]float64
	for r, s := range j.ranks {
		if s.found.IsZero() {
			continue
		}
		if out == nil {
			out = make(map[worker.Rank]float64)
		}
		out[r] = s.delivered / s.told
	}
	return out
}

// Doubted returns the ranks that lie, in their order.
func (j *Judge) Doubted(now time.Time) []Doubt {
	j.expire(now)
	var out []Doubt
	for r, s := range j.ranks {
		if !s.found.IsZero() {
			out = append(out, Doubt{r, s.found, int64(s.told), int64(s.delivered), s.prompts, s.short})
		}
	}
	slices.SortFunc(out, func(a, b Doubt) int { return a.Rank.Compare(b.Rank) })
	return out
}
