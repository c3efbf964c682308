package health

import "math"

// tally is the good and bad ends of a worker's requests, those of long ago
// counting for less: it holds some fifty requests at most.
type tally struct{ good, bad float64 }

// fade is what an older request counts for when the next one ends, and most how many a
// tally holds then.
const (
	fade = 0.98
	most = 50
)

// and returns the tally with one request more.
func (w tally) and(good bool) tally {
	w = w.times(fade)
	if good {
		w.good++
	} else {
		w.bad++
	}
	return w
}

func (w tally) times(x float64) tally { return tally{w.good * x, w.bad * x} }

// less takes away what is in x. A sum that was kept for long may be off by its
// rounding: below nothing is nothing.
func (w tally) less(x tally) tally {
	return tally{max(0, w.good-x.good), max(0, w.bad-x.bad)}
}

func (w tally) plus(x tally) tally { return tally{w.good + x.good, w.bad + x.bad} }

// odd reports whether the worker fails more than the others do: whether its odds
// to fail are more than twice theirs. The larger tally is taken for the size of
// the smaller, so that equal rates are never odd, however much more there is of
// one; where the others have had nothing to do, there is nothing to compare with.
// The additions are what is taken to be known before anything is: they let the
// first failure of a pool be odd, and none that the others share.
func (w tally) odd(others tally) bool {
	if n := others.size(); n > 0.5 { // one request is 1, but for rounding
		n = max(1, min(n, w.size()))
		w, others = w.downTo(n), others.downTo(n)
	}
	return w.bad*(others.good+1) > 2*(others.bad+0.25)*(w.good+1)
}

// chance is how rarely requests may give a worker by accident what it is set aside
// for. One in a hundred thousand: a run of seven errors where two workers have just
// begun, of four where the other has served some fifty requests.
const chance = 1e-5

// unlikely reports whether so many bad ends in a row are rarer than the chance where the
// others' requests end as w says. Their rate is taken for higher than it was, the less is
// known of it.
func (w tally) unlikely(run int, chance float64) bool {
	return math.Pow((w.bad+2)/(w.size()+4), float64(run)) < chance
}

// sudden is unlikely for one worker's run while the others serve on as before: of a run
// that is longer than what is known of them, that much is looked at.
func (w tally) sudden(run int, chance float64) bool {
	return w.unlikely(min(run, int(w.size()), most), chance)
}

// worse reports whether the worker's rate is above the others' by more than z standard
// errors of the difference.
func (w tally) worse(others tally, z float64) bool {
	n, m := w.size(), others.size()
	if n == 0 || m == 0 {
		return false
	}
	p := (w.bad + others.bad + 0.5) / (n + m + 1)
	return w.bad/n-others.bad/m > z*math.Sqrt(p*(1-p)*(1/n+1/m))
}

func (w tally) size() float64 { return w.good + w.bad }

func (w tally) downTo(n float64) tally {
	if has := w.size(); has > n {
		return w.times(n / has)
	}
	return w
}
