package load

import "github.com/seed-60ae5743/baton/pkg/picker"

// maxCarriers bounds the sets that a table keeps, each with one bit for each rank. It is
// about the number of taints that requests ask for at a time.
const maxCarriers = 256

// carrying returns the ranks of the table that have the taint.
func (t *table) carrying(b *Book, taint string) picker.Bits {
	if bits, known := t.carriers[taint]; known {
		return bits
	}
	if len(t.carriers) >= maxCarriers {
		clear(t.carriers)
	}
	if t.carriers == nil {
		t.carriers = make(map[string]picker.Bits)
	}
	ranks := t.cols.Ranks
	bits := picker.NewBits(len(ranks))
	for from, to := 0, 0; from < len(ranks); from = to {
		for to = from + 1; to < len(ranks) && ranks[to].ID == ranks[from].ID; to++ {
		}
		slot := b.slotLocked(ranks[from])
		if slot < 0 || !b.entries[slot].worker.HasTaint(taint) {
			continue
		}
		for i := from; i < to; i++ {
			bits.Set(i)
		}
	}
	t.carriers[taint] = bits
	return bits
}

// constrain applies taints, after bar: ranks without a required taint are marked as out,
// and preferences become a column. The error names the taint after which no rank was
// left.
func (t *table) constrain(b *Book, c *picker.Constraints) error {
	if c.None() {
		return nil
	}
	if len(c.Preferred) > 0 {
		t.prefer(b, c.Preferred)
	}
	if len(c.Required) == 0 || !t.anybody() {
		return nil // if no rank was left before, no taint is the cause
	}
	if &t.cols.Out[0] != &t.out[0] {
		copy(t.out, t.cols.Out)
		t.cols.Out = t.out
	}
	for _, taint := range c.Required {
		has := t.carrying(b, taint)
		for w := range t.out {
			t.out[w] |= ^has[w]
		}
		if !t.anybody() {
			return &picker.TaintError{Taint: taint}
		}
	}
	return nil
}

// anybody reports whether any rank is not marked as out.
func (t *table) anybody() bool {
	n := len(t.cols.Ranks)
	for w, out := range t.cols.Out {
		in := ^out
		if left := n - w*64; left < 64 {
			in &= 1<<left - 1
		}
		if in != 0 {
			return true
		}
	}
	return false
}

// prefer sums, for each rank, the weights of the preferences that it meets.
func (t *table) prefer(b *Book, preferred []picker.Preference) {
	if t.weights == nil {
		t.weights = make([]float32, len(t.cols.Ranks))
	}
	clear(t.weights)
	for _, p := range preferred {
		weight := float32(p.Weight)
		for w, in := range t.carrying(b, p.Taint) {
			if in == 0 {
				continue
			}
			chunk := t.weights[w*64 : min(w*64+64, len(t.weights))]
			for i := range chunk {
				if in>>i&1 != 0 {
					chunk[i] += weight
				}
			}
		}
	}
	t.cols.Taint = t.weights
}
