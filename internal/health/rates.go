package health

import "math"

// tally counts the good and the bad ends of a worker's requests. Older ones count less,
// so that it holds about fifty requests at most.
type tally struct{ good, bad float64 }

// The weight of each earlier request is multiplied by fade when a request ends. So all the
// weights together stay below 1/(1-fade), which is the constant most.
const (
	fade = 0.98
	most = 50
)

// and returns the tally with one more request.
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

// less returns the tally without x. After many sums rounding may leave less than zero:
// then zero is returned.
func (w tally) less(x tally) tally {
	return tally{max(0, w.good-x.good), max(0, w.bad-x.bad)}
}

func (w tally) plus(x tally) tally { return tally{w.good + x.good, w.bad + x.bad} }

// odd reports whether the worker fails more than the others do: whether its odds to fail
// are more than twice theirs. The larger tally is first scaled down to the size of the
// smaller, so that equal rates are never odd, however different the sizes are. If the
// others have ended no request, there is nothing to compare with, and no scaling. The
// added constants stand for what is assumed before anything is known: with them the first
// failure of a pool may be odd, but no failure that the others share.
func (w tally) odd(others tally) bool {
	if n := others.size(); n > 0.5 { // one request counts 1, apart from rounding
		n = max(1, min(n, w.size()))
		w, others = w.downTo(n), others.downTo(n)
	}
	return w.bad*(others.good+1) > 2*(others.bad+0.25)*(w.good+1)
}

// chance is how unlikely, by accident, a run must be for the worker to be set aside for
// it. One in a hundred thousand is a run of seven errors if two workers have just begun,
// of four if the other one has served some fifty requests.
const chance = 1e-5

// chanceOfBreak is the same for a run that ends with an answer that broke off.
const chanceOfBreak = 1e-2

// unlikely reports whether so many bad ends in a row are rarer than chance, if requests
// end as those that w counts. It assumes a higher rate of bad ends than w's, the more so
// the fewer w counts.
func (w tally) unlikely(run int, chance float64) bool {
	return math.Pow((w.bad+2)/(w.size()+4), float64(run)) < chance
}

// sudden is unlikely for a run of one worker while the others serve on as before. If the
// run is longer than the number of requests in w, only that many of it count.
func (w tally) sudden(run int, chance float64) bool {
	return w.unlikely(min(run, int(w.size()), most), chance)
}

// worse reports whether the worker's rate of failures is above the others' by more than z
// standard errors of the difference.
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
