package picker

import (
	"fmt"
	"math"
	"math/bits"
)

// OverloadedError says that every candidate was over a threshold, and that the
// parameters refuse the request then. A candidate that is over both thresholds is in
// both counts.
type OverloadedError struct {
	Candidates       int // how many candidates there are; all are overloaded
	ByPrefillTokens  int // over Params.PrefillTokensThreshold
	ByDecodeBlocks   int // over Params.DecodeBlocksThreshold
	LeastPrefill     int64
	PrefillThreshold int64
	DecodeThreshold  float64
}

// Error names the numbers.
func (e *OverloadedError) Error() string {
	s := fmt.Sprintf("picker: all %d candidates are overloaded", e.Candidates)
	if e.PrefillThreshold > 0 {
		s += fmt.Sprintf(": %d have over %d prompt tokens booked, the least has %d", e.ByPrefillTokens, e.PrefillThreshold, e.LeastPrefill)
	}
	if e.DecodeThreshold > 0 {
		s += fmt.Sprintf(": %d have over %v of their KV blocks booked", e.ByDecodeBlocks, e.DecodeThreshold)
	}
	return s
}

// Overload says which threshold a rank is over.
type Overload uint8

// The zero value means that the rank is over none.
const (
	NotOverloaded   Overload = iota
	ByPrefillTokens          // more prompt tokens are booked than the threshold
	ByDecodeBlocks           // more of its KV blocks are booked than the threshold
)

var overloadNames = [...]string{ByPrefillTokens: "overloaded: prompt tokens", ByDecodeBlocks: "overloaded: KV blocks"}

// String returns the reason in words for people, or "".
func (o Overload) String() string { return overloadNames[o] }

// OverloadOf returns the threshold that the candidate is over. A candidate whose load
// is unknown is over none. A candidate whose capacity is unknown is not over that for
// KV blocks.
func (c *Candidates) OverloadOf(i int, p *Params) Overload {
	switch {
	case c.LoadUnknown.Has(i):
		return NotOverloaded
	case c.overPrefill(i, p):
		return ByPrefillTokens
	case c.overDecode(i, p):
		return ByDecodeBlocks
	default:
		return NotOverloaded
	}
}

func (c *Candidates) overPrefill(i int, p *Params) bool {
	return p.PrefillTokensThreshold > 0 && c.Prefill[i] > float64(p.PrefillTokensThreshold)
}

func (c *Candidates) overDecode(i int, p *Params) bool {
	blocks := at(c.Capacity, i)
	return p.DecodeBlocksThreshold > 0 && blocks > 0 && c.Decode[i] > float64(p.DecodeBlocksThreshold*blocks)
}

// prepare sets c.in to the candidates that can be picked, and returns their number.
// Overloaded candidates cannot be picked, unless all are overloaded and
// p.ServeOverloaded is set.
func (c *Candidates) prepare(p *Params, d *Decision) (int, error) {
	n := c.Admit()
	if n == 0 {
		return 0, ErrNoCandidate
	}
	if p.PrefillTokensThreshold <= 0 && p.DecodeBlocksThreshold <= 0 {
		return n, nil
	}
	for w := range c.in {
		over := c.in[w] & c.overloadedWord(w, p)
		c.in[w] &^= over
		d.Overloaded += bits.OnesCount64(over)
	}
	switch {
	case d.Overloaded < n:
		return n - d.Overloaded, nil
	case p.ServeOverloaded:
		return c.Admit(), nil
	default:
		return 0, c.overloaded(p)
	}
}

// overloadedWord returns the overloaded candidates of one word.
func (c *Candidates) overloadedWord(w int, p *Params) uint64 {
	var over uint64
	from := w * chunk
	to := min(from+chunk, len(c.Ranks))
	if limit := float64(p.PrefillTokensThreshold); limit > 0 {
		for j, t := range c.Prefill[from:to] {
			if t > limit {
				over |= 1 << j
			}
		}
	}
	if p.DecodeBlocksThreshold > 0 && c.Capacity != nil {
		for i := from; i < to; i++ {
			if c.overDecode(i, p) {
				over |= 1 << (i - from)
			}
		}
	}
	return over &^ c.LoadUnknown.word(w)
}

// overloaded returns the error for a pick in which all candidates are overloaded.
func (c *Candidates) overloaded(p *Params) error {
	e := &OverloadedError{
		Candidates: c.Admit(), LeastPrefill: math.MaxInt64,
		PrefillThreshold: p.PrefillTokensThreshold, DecodeThreshold: p.DecodeBlocksThreshold,
	}
	for i := range c.Ranks {
		if !c.in.Has(i) {
			continue
		}
		if !c.LoadUnknown.Has(i) {
			e.LeastPrefill = min(e.LeastPrefill, int64(c.Prefill[i]))
		}
		if c.overPrefill(i, p) {
			e.ByPrefillTokens++
		}
		if c.overDecode(i, p) {
			e.ByDecodeBlocks++
		}
	}
	clear(c.in)
	return e
}

// SaturatedError says that too many prompt tokens are queued in a pool.
type SaturatedError struct {
	QueuedISLTokens    int64
	MaxQueuedISLTokens int64
}

// Error names both numbers.
func (e *SaturatedError) Error() string {
	return fmt.Sprintf("picker: %d prompt tokens are queued: expected fewer than %d", e.QueuedISLTokens, e.MaxQueuedISLTokens)
}

// CheckQueue returns a *SaturatedError if the candidates of c that are not Out have
// limit or more prompt tokens queued. The request that crosses the limit is still
// admitted, so that no prompt is too long for an idle pool. Overloaded candidates
// count: a full queue is reported rather than an overload. There is no error if limit
// is 0 or there are no candidates.
func CheckQueue(c *Candidates, limit int64) error {
	if limit <= 0 {
		return nil
	}
	if queued := QueuedTokens(c); queued >= limit {
		return &SaturatedError{QueuedISLTokens: queued, MaxQueuedISLTokens: limit}
	}
	return nil
}

// QueuedTokens returns the sum of the prompt tokens that are booked on the candidates
// of c that are not Out and whose load is known.
func QueuedTokens(c *Candidates) int64 {
	c.Admit()
	var queued float64
	for w, in := range c.in {
		in &^= c.LoadUnknown.word(w)
		if in == math.MaxUint64 {
			queued += sum((*[chunk]float64)(c.Prefill[w*chunk:]))
			continue
		}
		for ; in != 0; in &= in - 1 {
			queued += c.Prefill[w*chunk+bits.TrailingZeros64(in)]
		}
	}
	return int64(queued)
}

// sum adds in four independent sums, which a processor computes in parallel. Since the
// numbers are whole, the order of adding does not change the result.
func sum(tokens *[chunk]float64) float64 {
	var a, b, c, d float64
	for i := 0; i < chunk; i += 4 {
		a, b, c, d = a+tokens[i], b+tokens[i+1], c+tokens[i+2], d+tokens[i+3]
	}
	return a + b + c + d
}
