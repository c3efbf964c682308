package picker

// This file has the cost in seconds: what a pick costs the request and those that come after it.

// Pace is how long a rank takes to compute prompts, in seconds.
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
	// beside is what a second of this prompt's work costs each request that the rank has, in seconds: while
	// it is computed, their answers come slower.
	beside = 0.02
	// tooLate is added to the cost of a candidate that is believed to miss the request's target, so that any
	// one that keeps it costs less.
	tooLate = 1e9
)

// Ranked is the cost by which decisions of several pools are compared: one that misses the target is
// beyond any that keeps it.
func (d *Decision) Ranked() float64 {
	if d.Late {
		return d.Cost + tooLate
	}
	return d.Cost
}

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
	pace := Unlearned()
	if c.PerToken != nil {
		pace = Pace{c.PerToken[i], at(c.PerRequest, i)}
	}
	t.own = pace.Seconds(left)
	requests := 0.0
	t.wait, t.decode = 0, 0
	if !c.LoadUnknown.Has(i) {
		t.wait = at(c.Wait, i)
		if c.Wait == nil {
			t.wait = float64(c.Prefill[i] * pace.PerToken)
		}
		t.decode, requests = float64(runningBlock*c.Decode[i]), c.Requests[i]
	}
	t.prefill = t.wait + t.own
	t.cost = t.prefill + float64(t.own*(float64(k.pressure*t.prefill)+float64(beside*requests))) + t.decode
	t.late = t.prefill > k.target
	if t.late {
		t.cost += tooLate
	}
}

// fillSeconds is the short form of inSeconds for candidates of a word that hold nothing on host or disk
// and whose overlap counts in full or alike.
func (k *coster) fillSeconds(dst *costs, weight float64, overlap []uint32, wait, perToken, perRequest, decode, requests []float64) {
	n := len(overlap)
	if n > chunk || len(wait) < n || len(perToken) < n || len(perRequest) < n || len(decode) < n || len(requests) < n {
		return
	}
	isl, size, pressure := k.isl, k.blockSize, k.pressure
	for i, o := range overlap {
		dst[i] = wait[i]
		if dst[i] > k.bar { // the cost is more still
			continue
		}
		left := isl
		if o != 0 {
			cached := size * float64(o)
			if weight != 1 { // else it is whole
				cached = whole(float64(size * float64(weight*float64(o))))
			}
			left -= cached
			if left < 0 {
				left = 0
			}
		}
		own := float64(left*perToken[i]) + perRequest[i]
		prefill := wait[i] + own
		dst[i] = prefill + float64(own*(float64(pressure*prefill)+float64(beside*requests[i]))) + float64(runningBlock*decode[i])
		if prefill > k.target {
			dst[i] += tooLate
		}
	}
}

// Writing is how long a rank takes for a token of each answer that it runs, in seconds.
type Writing struct {
	Base     float64
	PerBlock float64 // for each KV block that running answers hold
}

// UnlearnedWriting is what is believed of a rank of which nothing is known: 20 ms, and 1 µs for each block.
func UnlearnedWriting() Writing { return Writing{0.02, 1e-6} }

const (
	// written is what a second counts by which the answer is written later, and slowed the same of each
	// answer that runs, beside one by which the first token is later. The latter is little: to give a long
	// prompt to the rank with the fewest answers makes theirs the slowest of all.
	written, slowed = 0.1, 0.01
	// usual is the part of an answer's greatest expected length that answers have on average.
	usual = 0.25
	// UnlearnedHandOff is how long it is believed to take until a token of a prompt has been brought from
	// prefill to decode, in seconds: that of 160 KB at 25 GB/s.
	UnlearnedHandOff = 1.0 / 160_000
)

// decodes computes the costs in seconds of n candidates for decode, from that position on: what the answer
// takes there, what it adds to the time of those that run, what fetching takes, and what a lack of room
// does. Blocks that are too many now come free as answers end. Those that answers will have too many
// are computed again, since the engine preempts.
func (k *coster) decodes(dst *costs, from, n int) {
	c, to := k.c, from+n
	base, perBlock, decode, requests := c.PerStep[from:to], c.PerBlock[from:to], c.Decode[from:to], c.Requests[from:to]
	rooms, growing := c.Capacity[from:to], c.Growing[from:to]
	added, others, usually := k.newBlocks, slowed*k.answer*k.newBlocks, k.newBlocks+k.grows
	unknown := c.LoadUnknown.word(from/chunk) >> (from % chunk)
	for j := range n {
		held, running := decode[j], 1.0
		if unknown>>j&1 != 0 {
			held, running = 0, 0
		}
		own := k.answer * (base[j] + perBlock[j]*(held+added))
		dst[j] = written * own
		if dst[j] > k.bar { // the cost is more still
			continue
		}
		cost := written*own + others*running*requests[j]*perBlock[j]
		if room := rooms[j]; room > 0 && held > 0 {
			if over := held + added - room; over > 0 {
				cost += over / held * own
			}
			if over := usually + held + usual*growing[j] - max(room, held+added); over > 0 {
				cost += k.again * over
			}
		}
		dst[j] = cost
	}
	for j := range c.Farther[min(from, len(c.Farther)):min(to, len(c.Farther))] {
		dst[j] += c.Farther[from+j]
	}
	if k.fetch == 0 {
		return
	}
	for j, o := range c.Overlap[from:to] {
		lacking := k.prompt
		if i := from + j; o > 0 || c.Starved.Has(i) {
			lacking = k.lacking(i, k.weight(i)*float64(o))
		}
		dst[j] += k.fetch * lacking
	}
}
