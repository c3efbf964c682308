package load

import "github.com/seed-60ae5743/baton/pkg/picker"

// share is how often each rank of a table has lately been picked for decode. Older picks
// count less: the weight of a pick falls to about a third while shareMemory picks per
// rank follow.
type share struct {
	got  []float64
	step float64 // weight of the next pick; it grows, so that older picks need not be made smaller
}

const (
	shareMemory = 32.0
	// shareBegins is how many picks each rank starts with. With them, some picks can
	// follow what ranks hold before any rank counts as starved.
	shareBegins = 4.0
	// sharePart is the part of an even share below which a rank counts as starved.
	sharePart = 0.6
	shareMost = 1e9 // limit of step; beyond it all weights are scaled down
)

// note counts a pick of the rank at i, in a table of n ranks.
func (s *share) note(i, n int) {
	if len(s.got) != n {
		s.got, s.step = make([]float64, n), 1
		for j := range s.got {
			s.got[j] = shareBegins
		}
	}
	s.got[i] += s.step
	s.step *= 1 + 1/(shareMemory*float64(n))
	if s.step > shareMost {
		for j := range s.got {
			s.got[j] /= s.step
		}
		s.step = 1
	}
}

// starved writes to dst which ranks have had less than their part. Ranks that are out do
// not count. It returns dst, or nil if no rank is starved.
func (s *share) starved(dst, out picker.Bits) picker.Bits {
	sum, count := 0.0, 0
	for i, got := range s.got {
		if !out.Has(i) {
			sum, count = sum+got, count+1
		}
	}
	clear(dst)
	least, some := sharePart*sum/float64(max(count, 1)), false
	for i, got := range s.got {
		if got < least && !out.Has(i) {
			dst.Set(i)
			some = true
		}
	}
	if !some {
		return nil
	}
	return dst
}
