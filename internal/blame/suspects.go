package blame

import (
	"slices"
	"time"
)

// Suspect is what one attempt leaves open until a mate has shown whose fault it was.
type Suspect[W comparable] struct {
	Worker W
	Charge Charge
	Pair   *[2]W         // prefill and decode, where the hand-off between them is what failed
	Lone   [2]bool       // nobody else could have stood for the pair's prefill, or its decode
	Within time.Duration // a mate has to serve in less, to show that the worker was slow; 0: in any time
}

// Suspects are what earlier attempts of a request left open, oldest first. The zero
// value is a request's first attempt.
type Suspects[W comparable] []Suspect[W]

// Verdict is a charge that is made: on a worker, or on the two of a pair.
type Verdict[W comparable] struct {
	Worker W
	Charge Charge
	Pair   *[2]W
	Proven bool // a mate has served the same request
}

// Served returns what is charged once a worker, or a pair, has accepted after that
// time what the suspects have failed. A worker that has part in both is cleared. Its
// partner of then is charged only where it has no other one to fail with: else it may be
// the way between the two, and the pair is charged.
func (s Suspects[W]) Served(took time.Duration, by ...W) []Verdict[W] {
	var out []Verdict[W]
	for _, x := range s {
		if x.Within > 0 && took >= x.Within {
			continue
		}
		if x.Pair != nil {
			if v, made := x.servedPair(by); made {
				out = append(out, v)
			}
			continue
		}
		if !slices.Contains(by, x.Worker) {
			out = append(out, Verdict[W]{Worker: x.Worker, Charge: x.Charge, Proven: true})
		}
	}
	return out
}

// servedPair is Served for one pair.
func (x *Suspect[W]) servedPair(by []W) (v Verdict[W], made bool) {
	side := Error
	if x.Within > 0 {
		side = Slow
	}
	p, d := slices.Contains(by, x.Pair[0]), slices.Contains(by, x.Pair[1])
	switch {
	case p && d:
		return v, false
	case p && x.Lone[0]:
		return Verdict[W]{Worker: x.Pair[1], Charge: side, Proven: true}, true
	case d && x.Lone[1]:
		return Verdict[W]{Worker: x.Pair[0], Charge: side, Proven: true}, true
	default:
		return Verdict[W]{Pair: x.Pair, Proven: true}, true
	}
}

// Last returns what is charged for a request whose last attempt has failed at a
// worker with c: nothing where a mate failed it alike before, else that charge.
func (s Suspects[W]) Last(w W, c Charge) (Verdict[W], bool) {
	if c == None {
		return Verdict[W]{}, false
	}
	if c.waits() {
		for _, x := range s {
			if x.Worker != w && x.Charge == c {
				return Verdict[W]{}, false
			}
		}
	}
	return Verdict[W]{Worker: w, Charge: c}, true
}

// Stalled returns which side of a pair is charged, where it has taken too long and
// nobody else can be tried: decode, for a prefill that meets its decode waits for it as
// long as decode is silent, and no mate of decode's has served. Prefill only where each
// attempt of the request was with it, and with more than one decode worker. same
// reports whether two are of one worker.
func (s Suspects[W]) Stalled(prefill, decode W, same func(a, b W) bool) W {
	several := false
	for _, x := range s {
		if x.Pair == nil || x.Within == 0 {
			continue
		}
		if !same(x.Pair[0], prefill) {
			return decode
		}
		several = several || !same(x.Pair[1], decode)
	}
	if several {
		return prefill
	}
	return decode
}

// And returns the suspects with one more, and the charge that needs no mate's word.
func (s Suspects[W]) And(x Suspect[W]) (Suspects[W], Charge) {
	now := None
	if !x.Charge.waits() {
		now, x.Charge = x.Charge, None
	}
	if x.Charge == None && x.Pair == nil {
		return s, now
	}
	return append(slices.Clip(s), x), now
}
