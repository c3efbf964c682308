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
	// muteAt is after how many prompts a rank counts as mute, each picked when the one before it
	// was over, and each with a block that was computed, without a message of its events.
	muteAt = 8
	// keptFor is how long a rank is remembered of which no more prompts are judged: it has
	// then told of nothing that it could have delivered.
	keptFor = time.Hour
)

// Judge finds ranks that hold less than their events say. The zero value is ready.
type Judge struct {
	ranks map[worker.Rank]*suspect
}

// suspect is what is kept of a rank. Its sums begin with a short prompt, when the score is 0.
type suspect struct {
	score           int
	lies            bool      // since the score was findAt, until it is 0
	found, last     time.Time // found is zero: it is not doubted
	told, delivered float64   // tokens, older ones counting less
	prompts, short  int

	messages uint64    // of events, when the latest prompt was over
	mute     int       // how many prompts have computed blocks since a message came
	counted  time.Time // when the latest of those was over
}

// settle notes whether the rank is doubted now. v says what the prompt has shown.
func (s *suspect) settle(v Verdict, now time.Time) Verdict {
	is := s.lies || s.mute >= muteAt
	switch {
	case is && s.found.IsZero():
		s.found = now
	case !is && !s.found.IsZero():
		s.found, v = time.Time{}, Healed
	}
	return v
}

// Doubt is a rank that is believed to hold less than its events say.
type Doubt struct {
	Rank            worker.Rank
	Since           time.Time
	Told, Delivered int64 // tokens lately, older ones counting less
	Prompts, Short  int   // since it was first short: how many were judged, and how many were short
	Mute            bool  // it computes prompts, and no message with events comes
}

// Verdict is what a prompt has changed.
type Verdict uint8

// The verdicts.
const (
	Same   Verdict = iota
	Found          // it lies
	Mute           // it computes prompts, and none of its events comes
	Healed         // neither any more
)

// Judgeable reports whether a prompt says anything of its rank: if its events told of enough
// of it.
func Judgeable(told, blockSize int64) bool { return told >= leastBlocks*max(blockSize, 1) }

// Add judges one prompt of a rank: of how many of its tokens the rank's events told, and how
// many were delivered. Prompts whose loss has another cause than StaleIndex are not to be
// given.
func (j *Judge) Add(r worker.Rank, told, delivered int64, now time.Time) Verdict {
	s, short := j.of(r, now), 2*delivered < told
	if s.score == 0 {
		if !short {
			return Same
		}
		s.told, s.delivered, s.prompts, s.short = 0, 0, 0, 0
	}
	s.told += float64(told) - fades*s.told
	s.delivered += float64(min(delivered, told)) - fades*s.delivered
	s.prompts++
	if short {
		s.short++
		s.score = min(s.score+shortAdds, findAt)
	} else {
		s.score--
	}
	if s.score == findAt && !s.lies {
		s.lies = true
		return s.settle(Found, now)
	}
	s.lies = s.lies && s.score > 0
	return s.settle(Same, now)
}

// Computed judges one prompt of a rank of which it has computed a block or more: so many
// messages with its events have come in all, of which one tells of the blocks unless it is
// still on its way.
func (j *Judge) Computed(r worker.Rank, messages uint64, picked, now time.Time) Verdict {
	s := j.of(r, now)
	switch {
	case s.messages != messages:
		s.messages, s.mute, s.counted = messages, 0, now
	case picked.After(s.counted):
		s.mute, s.counted = s.mute+1, now
		if s.mute == muteAt {
			return s.settle(Mute, now)
		}
	}
	return s.settle(Same, now)
}

func (j *Judge) of(r worker.Rank, now time.Time) *suspect {
	j.expire(now)
	s := j.ranks[r]
	if s == nil {
		s = new(suspect)
		if j.ranks == nil {
			j.ranks = make(map[worker.Rank]*suspect)
		}
		j.ranks[r] = s
	}
	s.last = now
	return s
}

func (j *Judge) expire(now time.Time) {
	maps.DeleteFunc(j.ranks, func(_ worker.Rank, s *suspect) bool { return now.Sub(s.last) >= keptFor })
}

// Keep forgets the ranks for which it returns false.
func (j *Judge) Keep(known func(worker.Rank) bool) {
	maps.DeleteFunc(j.ranks, func(r worker.Rank, _ *suspect) bool { return !known(r) })
}

// Discounts returns which part of its overlap is to count of each rank that is doubted and has
// not delivered all that its events told. nil: there is none.
func (j *Judge) Discounts() map[worker.Rank]float64 {
	var out map[worker.Rank]float64
	for r, s := range j.ranks {
		if s.found.IsZero() || s.score == 0 {
			continue
		}
		if out == nil {
			out = make(map[worker.Rank]float64)
		}
		out[r] = s.delivered / s.told
	}
	return out
}

// Doubted returns the ranks that lie or are mute, in their order.
func (j *Judge) Doubted(now time.Time) []Doubt {
	j.expire(now)
	var out []Doubt
	for r, s := range j.ranks {
		if !s.found.IsZero() {
			out = append(out, Doubt{r, s.found, int64(s.told), int64(s.delivered), s.prompts, s.short, s.mute >= muteAt})
		}
	}
	slices.SortFunc(out, func(a, b Doubt) int { return a.Rank.Compare(b.Rank) })
	return out
}
