package replay

import (
	"errors"
	"fmt"
	"time"
)

// Block names one whole block of a prompt together with all that comes before it.
type Block uint64

// Request is one request of a workload.
type Request struct {
	At      time.Duration // its arrival, after the run's beginning; see Follows
	Tokens  int           // of the prompt
	Blocks  []Block       // the prompt's whole blocks
	Tail    Block         // names what comes after them; 0: nothing, or not known
	Answer  int           // tokens of the answer; below 1 counts as 1
	Session int           // requests of one session have one number
	// Follows is the number, from 1, of the request after whose end this one arrives: At then
	// counts from that end. 0: none.
	Follows int
}

// Workload is requests in order of arrival, but for those that follow others.
type Workload struct {
	BlockTokens int // of each block
	Requests    []Request
}

// Reusable returns how many leading blocks of the prompt can be taken from a cache: engines
// compute the last token whatever is cached, and with it its whole block.
func (w *Workload) Reusable(r *Request) int {
	return min(len(r.Blocks), (r.Tokens-1)/w.BlockTokens)
}

func (w *Workload) validate() error {
	if w.BlockTokens < 1 || len(w.Requests) == 0 {
		return errors.New("workload: expected requests, and tokens in a block")
	}
	last := time.Duration(0)
	for i := range w.Requests {
		r := &w.Requests[i]
		if r.Tokens < 1 || len(r.Blocks) > r.Tokens/w.BlockTokens || r.Follows < 0 || r.Follows > i || r.At < 0 || r.Follows == 0 && r.At < last {
			return fmt.Errorf("request %d: at %v, after request %d, %d tokens, %d blocks: expected tokens, no more blocks than they fill, and arrivals in order", i, r.At, r.Follows-1, r.Tokens, len(r.Blocks))
		}
		if r.Follows == 0 {
			last = r.At
		}
	}
	return nil
}

// Bound returns the share of the prompt tokens that one cache which forgets nothing would
// hold: no way to choose passes it.
func (w *Workload) Bound() float64 {
	seen := map[Block]bool{}
	hits, tokens := 0, 0
	for i := range w.Requests {
		r := &w.Requests[i]
		tokens += r.Tokens
		for _, b := range r.Blocks[:w.Reusable(r)] {
			if !seen[b] {
				break
			}
			hits += w.BlockTokens
		}
		for _, b := range r.Blocks {
			seen[b] = true
		}
	}
	return float64(hits) / float64(tokens)
}

// Scale makes requests arrive so many times as fast. Pauses of those that follow others stay.
func Scale(requests []Request, rate float64) {
	for i := range requests {
		if requests[i].Follows == 0 {
			requests[i].At = time.Duration(float64(requests[i].At) / rate)
		}
	}
}

// Spread lets requests of one time arrive one after the other, evenly until the next time: a
// published trace tells times in steps.
func Spread(requests []Request) {
	step := time.Duration(0)
	for i := 0; i < len(requests); {
		n := i + 1
		for n < len(requests) && requests[n].At == requests[i].At {
			n++
		}
		if n < len(requests) {
			step = requests[n].At - requests[i].At
		}
		for k := i + 1; k < n; k++ {
			requests[k].At += step * time.Duration(k-i) / time.Duration(n-i)
		}
		i = n
	}
}
