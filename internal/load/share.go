package load

import "github.com/seed-60ae5743/baton/pkg/picker"

// share is how often each rank of a table has lately been picked for decode. A pick
// counts less the more have followed it: by half after some shareMemory a rank.
type share struct {
	got  []float64
	step float64 // what the next pick counts: more than the one before, in place of making all others less
}

const (
	shareMemory = 32.0
	// shareBegins is how many picks each rank counts as having had before the first one:
	// so many follow what ranks hold before anybody can be starved.
	shareBegins = 4.0
	// sharePart of an even share is what a rank gets in any case.
	sharePart = 0.6
	shareMost = 1e9 // of step, from where all is made less
)

// note counts a pick of the rank at i, of n.
func (s *share) note(i, n int) {
	if len(s.got) != n {
		s.got, s.step = make([]float64, n), 1
		for j := range s.got {
			s.got[j] = shareBegins
		}
	}
	s.got[i] += s.step
	if s.step *= 1 + 1/(shareMemory*float64(n)); s.step > shareMost {
		for j := range s.got {
			s.got[j] /= s.step
		}
		s.step = 1
	}
}

// starved writes to dst who of those that are not out has got less than its part, and
// returns nil where nobody has.
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
