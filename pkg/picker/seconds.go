package picker

// This file has the cost in seconds: what a pick costs the request and those that come after it.

// Pace is how long a rank takes to compute prompts, in seconds. The zero value is not known: the rank
// is then taken for one of the pace [Unlearned].
type Pace struct{ PerToken, PerRequest float64 }

// Seconds returns how long so many tokens take as one request.
func (p Pace) Seconds(tokens float64) float64 { return float64(p.PerToken*tokens) + p.PerRequest }

// Unlearned is what is believed of a rank of which nothing is known: 10,000 tokens a second, and 10 ms for
// a request. All ranks being alike, only the terms of a cost among each other depend on it.
func Unlearned() Pace { return Pace{unlearnedToken, unlearnedRequest} }

const (
	unlearnedToken   = 1.0 / 10_000
	unlearnedRequest = 0.01
)

// Flow is what has lately come to the ranks of a pool, on average over a minute.
type Flow struct {
	Arrivals float64 // requests a second and rank
	Busy     float64 // seconds of prompt work that are booked a second and rank
}

const (
	// later is how much of a second by which those who come later wait longer counts as one of the
	// request's own: half of them come while it still runs.
	later = 0.5
	// mostBusy bounds what is believed of how busy ranks are: beyond it queues grow whatever is picked.
	mostBusy = 0.95
	// runningBlock is what a KV block of a running answer adds to the time of a new prompt on the rank,
	// in seconds.
	runningBlock = 0.002
)

// pressure is what a second of this request's work costs those who come after it, for each second that
// they would wait: later · λ / (1 − ρ).
func (f *Flow) pressure() float64 {
	return later * max(f.Arrivals, 0) / (1 - min(max(f.Busy, 0), mostBusy))
}

// inSeconds computes the terms of one candidate. With W the seconds until the rank is free and O the
// seconds of this prompt there, the cost is W + O + O · pressure · (W + O) + what running answers cost.
//
// As in coster.of each product is converted, so that the short form gives the same bits.
func (k *coster) inSeconds(i int, overlap, lower float64, t *terms) {
	c := k.c
	t.creditBlocks = overlap + lower
	left := k.isl - whole(float64(k.blockSize*t.creditBlocks))
	if left < 0 {
		left = 0
	}
	pace := Pace{at(c.PerToken, i), at(c.PerRequest, i)}
	if pace == (Pace{}) {
		pace = Unlearned()
	}
	t.own = pace.Seconds(left)
	t.wait, t.decode = 0, 0
	if !c.LoadUnknown.Has(i) {
		if t.wait = at(c.Wait, i); c.Wait == nil {
			t.wait = float64(c.Prefill[i] * pace.PerToken)
		}
		t.decode = float64(runningBlock * c.Decode[i])
	}
	t.prefill = t.wait + t.own
	t.cost = t.prefill + float64(float64(t.own*k.pressure)*t.prefill) + t.decode
}

// fillSeconds is the short form of inSeconds for candidates of a word that hold nothing on host or disk
// and whose overlap counts in full or alike.
func (k *coster) fillSeconds(dst *costs, weight float64, overlap []uint32, wait, perToken, perRequest, decode []float64) {
	n := len(overlap)
	if n > chunk || len(wait) < n || len(perToken) < n || len(perRequest) < n || len(decode) < n {
		return
	}
	isl, size, pressure := k.isl, k.blockSize, k.pressure
	for i := range n {
		left := isl - whole(float64(size*float64(weight*float64(overlap[i]))))
		if left < 0 {
			left = 0
		}
		token, request := perToken[i], perRequest[i]
		if token == 0 && request == 0 {
			token, request = unlearnedToken, unlearnedRequest
		}
		own := float64(left*token) + request
		prefill := wait[i] + own
		dst[i] = prefill + float64(float64(own*pressure)*prefill) + float64(runningBlock*decode[i])
	}
}
