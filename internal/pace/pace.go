package pace

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"time"
)

// Speed is how long a rank takes: seconds for each token that it computes, and for each request.
type Speed struct{ PerToken, PerRequest float64 }

// Seconds returns how long so many tokens take as one request.
func (s Speed) Seconds(tokens float64) float64 { return s.PerToken*tokens + s.PerRequest }

const (
	forget   = 0.98 // what a leg counts after the next one
	asFleet  = 8    // legs that the fleet's values count for in a rank's
	deadBand = 1.3  // a rank that differs by less is like the fleet
	outlier  = 4    // a leg counts for at most so many times what was expected
	enough   = 5    // legs before anything is believed
	others   = 20   // legs up to which what other fleets have seen makes up for what is lacking

	// Of the test for sudden changes. With logarithms that scatter by 0.3 around 0, a sum that loses
	// slack with each leg comes to alarm by chance once in a billion legs; after a change by two times
	// it takes some 13.
	slack = 0.2
	alarm = 5.0
	most  = 1.5 // of one leg's logarithm
)

// sums are those of a regression, over weighted legs.
type sums struct{ N, X, T, XX, XT float64 }

func (s *sums) add(x, t float64) {
	s.N, s.X, s.T = s.N+1, s.X+x, s.T+t
	s.XX, s.XT = s.XX+x*x, s.XT+x*t
}

func (s *sums) scale(by float64) {
	s.N, s.X, s.T, s.XX, s.XT = s.N*by, s.X*by, s.T*by, s.XX*by, s.XT*by
}

func (s sums) plus(o sums, by float64) sums {
	o.scale(by)
	return sums{s.N + o.N, s.X + o.X, s.T + o.T, s.XX + o.XX, s.XT + o.XT}
}

// fit solves for the speed. Lengths that are alike say nothing of what a request costs beside its
// tokens, and a slope or an offset below zero is chance.
func (s *sums) fit() Speed {
	if s.N <= 0 || s.X <= 0 || s.T <= 0 {
		return Speed{}
	}
	whole := Speed{PerToken: s.T / s.X}
	d := s.N*s.XX - s.X*s.X
	if d <= 1e-6*s.X*s.X {
		return whole
	}
	a := (s.N*s.XT - s.X*s.T) / d
	b := (s.T - a*s.X) / s.N
	switch {
	case a <= 0:
		return Speed{PerRequest: s.T / s.N}
	case b < 0:
		return whole
	}
	return Speed{a, b}
}

// rank is what is known of one rank.
type rank struct {
	all  sums
	seen float64 // Fleet.age when all was made

	// Sums of logarithms above and below what was expected, and the legs since each was last 0.
	slower, faster change
}

// change is a cumulative sum. What is expected is what was when the sum was last 0, so that it does not
// follow the change that is to be found.
type change struct {
	sum  float64
	than Speed
	legs sums
}

// step takes a leg, and reports whether the rank has changed; sign is 1 for slower, -1 for faster.
func (c *change) step(own Speed, sign, x, t float64) bool {
	if c.sum == 0 {
		c.than = own
	}
	c.sum += sign*min(max(math.Log(t/c.than.Seconds(x)), -most), most) - slack
	if !(c.sum > 0) {
		*c = change{}
		return false
	}
	c.legs.add(x, t)
	return c.sum >= alarm
}

// Fleet is what is known of all ranks of one kind, such as the prefill ranks of a model, or of all pairs of
// ranks. The zero value is ready.
type Fleet[K comparable] struct {
	ranks map[K]*rank
	all   sums
	age   float64 // legs that have ended, for each rank

	shared map[uint64]*Fleet[K]
}

// Share takes what another observer has learned of the same ranks, in place of what it said before. It
// counts only where this fleet has seen little itself. nil forgets it. o is not changed any more.
func (f *Fleet[K]) Share(by uint64, o *Fleet[K]) {
	if o == nil {
		delete(f.shared, by)
		return
	}
	if f.shared == nil {
		f.shared = make(map[uint64]*Fleet[K])
	}
	f.shared[by] = o
}

// with adds to s what others have seen, as far as it is lacking: of a rank, or, if that is nil, of all.
func (f *Fleet[K]) with(s sums, at *K) sums {
	if len(f.shared) == 0 || s.N >= others {
		return s
	}
	var theirs sums
	for _, o := range f.shared {
		switch {
		case at == nil:
			theirs = theirs.plus(o.all, 1)
		case o.ranks[*at] != nil:
			theirs = theirs.plus(o.ranks[*at].all, 1)
		}
	}
	if theirs.N == 0 {
		return s
	}
	return s.plus(theirs, min(1, (others-s.N)/theirs.N))
}

// whole is what is known of all ranks.
func (f *Fleet[K]) whole() sums { return f.with(f.all, nil) }

// fade lets what is known of a rank count less, by what its mates have computed meanwhile. So a rank that is
// not picked, since it was slow, is believed to be like the fleet after a while, and is picked again.
func (f *Fleet[K]) fade(r *rank) sums {
	s := r.all
	s.scale(math.Pow(forget, f.age-r.seen))
	return s
}

// Ended tells of a leg that the rank has ended. tokens are those that it has computed, spent is how long it
// was busy with them. It returns what had been expected, in seconds; 0 if nothing was.
func (f *Fleet[K]) Ended(at K, spent time.Duration, tokens int64) (expected float64) {
	r := f.ranks[at]
	if r == nil {
		if f.ranks == nil {
			f.ranks = make(map[K]*rank)
		}
		r = &rank{seen: f.age}
		f.ranks[at] = r
	}
	took := spent.Seconds()
	if tokens <= 0 || took <= 0 {
		return 0
	}
	x := float64(tokens)
	own := f.own(r, at)
	expected = own.Seconds(x)
	if expected > 0 && r.all.N+f.all.N >= enough {
		for _, c := range [...]struct {
			*change
			sign float64
		}{{&r.slower, 1}, {&r.faster, -1}} {
			if c.step(own, c.sign, x, took) {
				r.all, r.seen, r.slower, r.faster = c.legs, f.age, change{}, change{}
				return expected
			}
		}
	}
	counted := took
	if expected > 0 && r.all.N+f.all.N >= enough { // of many pairs each has few legs of its own
		counted = min(took, outlier*expected)
	}
	f.age += 1 / float64(len(f.ranks))
	r.all = f.fade(r)
	r.seen = f.age
	r.all.add(x, counted)
	f.all.scale(forget)
	f.all.add(x, counted)
	return expected
}

// own returns a rank's speed by its own legs, with the fleet's for those that it lacks.
func (f *Fleet[K]) own(r *rank, at K) Speed {
	s := f.legs(r, at)
	if all := f.whole(); all.N > 0 {
		s = s.plus(all, asFleet/all.N*max(0, 1-s.N/(4*asFleet)))
	}
	return s.fit()
}

// legs are those on which what is known of a rank rests; r is nil if this fleet has seen none itself.
func (f *Fleet[K]) legs(r *rank, at K) (s sums) {
	if r != nil {
		s = f.fade(r)
	}
	return f.with(s, &at)
}

// Of returns what is believed of a rank; known is false if nothing is.
func (f *Fleet[K]) Of(at K) (s Speed, known bool) {
	mean, known := f.Mean()
	r := f.ranks[at]
	if !known || f.legs(r, at).N < enough {
		return mean, known
	}
	all := f.whole()
	own, x := f.own(r, at), all.X/all.N
	ratio := own.Seconds(x) / mean.Seconds(x)
	if ratio < deadBand && ratio > 1/deadBand {
		return mean, true
	}
	return own, true
}

// Mean returns what is believed of the fleet; known is false if too few legs have ended.
func (f *Fleet[K]) Mean() (s Speed, known bool) {
	all := f.whole()
	if all.N < enough {
		return Speed{}, false
	}
	return all.fit(), true
}

// Legs returns how many legs what is known of a rank rests on, older ones counting less.
func (f *Fleet[K]) Legs(at K) float64 {
	return f.legs(f.ranks[at], at).N
}

// Len returns of how many ranks or pairs something is known.
func (f *Fleet[K]) Len() int { return len(f.ranks) }

// Each calls f for each rank of which something is known, here or by another observer.
func (f *Fleet[K]) Each(do func(K)) {
	known := maps.Clone(f.ranks)
	if known == nil {
		known = make(map[K]*rank)
	}
	for _, o := range f.shared {
		maps.Copy(known, o.ranks)
	}
	for at := range known {
		do(at)
	}
}

// Keep forgets all ranks for which keep returns false.
func (f *Fleet[K]) Keep(keep func(K) bool) {
	maps.DeleteFunc(f.ranks, func(at K, _ *rank) bool { return !keep(at) })
}

// kept is a Fleet as JSON.
type kept[K comparable] struct {
	All   sums
	Ranks []keptRank[K]
}

type keptRank[K comparable] struct {
	At   K
	Legs sums
}

// MarshalJSON writes what is believed, so that a later process begins with it.
func (f *Fleet[K]) MarshalJSON() ([]byte, error) {
	out := kept[K]{All: f.all}
	for at, r := range f.ranks {
		out.Ranks = append(out.Ranks, keptRank[K]{at, f.fade(r)})
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON has written. Numbers below zero are an error.
func (f *Fleet[K]) UnmarshalJSON(b []byte) error {
	var in kept[K]
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*f = Fleet[K]{all: in.All, ranks: make(map[K]*rank)}
	wrong := func(s sums) bool { return min(s.N, s.X, s.T, s.XX, s.XT) < 0 }
	bad := wrong(in.All)
	for _, r := range in.Ranks {
		f.ranks[r.At] = &rank{all: r.Legs}
		bad = bad || wrong(r.Legs)
	}
	if bad {
		return errors.New("pace: a sum below zero")
	}
	return nil
}
