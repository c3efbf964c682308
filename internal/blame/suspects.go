package blame

import (
	"slices"
	"time"
)

// Suspect is a possible charge from one attempt, held back until a mate has shown whose
// fault it was.
type Suspect[W comparable] struct {
	Worker W
	Charge Charge
	Pair   *[2]W         // prefill and decode, if the hand-off between them has failed
	Lone   [2]bool       // the pair's prefill, or its decode, was the only worker that could have been picked
	Within time.Duration // the mate has to serve in less, to show that the worker was slow; 0: in any time
}

// Suspects are the suspects of earlier attempts of a request, oldest first. The zero
// value is for a request's first attempt.
type Suspects[W comparable] []Suspect[W]

// Verdict is a charge that is made: against a worker, or against the two of a pair.
type Verdict[W comparable] struct {
	Worker W
	Charge Charge
	Pair   *[2]W
	Proven bool // a mate has served the same request
}

// Served returns the charges that follow when a worker, or a pair, has served the request
// after the given time. A suspect worker that is one of them is cleared. Its partner in a
// failed pair is charged alone only if the cleared worker could have had no mate in that
// attempt; else the way between the two may be at fault, and the pair is charged.
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

// servedPair is Served for the suspect x, which is a pair. It returns false if x is
// cleared.
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

// Last returns the charge for a request whose last attempt has failed at a worker with c.
// It returns false if nothing is charged: a mate has failed the request in the same way
// before.
func (s Suspects[W]) Last(w W, c Charge) (Verdict[W], bool) {
	failedAlike := func(x Suspect[W]) bool { return x.Worker != w && x.Charge == c }
	if c == None || c.waits() && slices.ContainsFunc(s, failedAlike) {
		return Verdict[W]{}, false
	}
	return Verdict[W]{Worker: w, Charge: c}, true
}

// Cleared returns the suspects without an error of the worker's: a mate has answered alike, and
// is believed.
func (s Suspects[W]) Cleared(w W) Suspects[W] {
	return slices.DeleteFunc(slices.Clone(s), func(x Suspect[W]) bool { return x.Worker == w && x.Charge == Error && x.Pair == nil })
}

// And returns the suspects with x added, and the charge of x if that needs no mate's
// proof.
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
