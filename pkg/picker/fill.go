package picker

import "math/bits"

// costs are the costs of one chunk of candidates.
type costs [chunk]float64

// fill computes the costs of the candidates in word w, also of those that cannot be
// picked, and returns how many they are. If the candidates allow it, fill uses a short
// form of the formula, which gives the same bits as coster.of and is several times as
// fast.
func (k *coster) fill(w int, dst *costs) int {
	c := k.c
	from := w * chunk
	n := min(chunk, len(c.Ranks)-from)
	if k.short(w, n, dst) {
		if c.Taint != nil {
			for i, taint := range c.Taint[from : from+n] {
				if taint != 0 {
					dst[i] = k.tainted(dst[i], taint)
				}
			}
		}
		return n
	}
	var t terms
	for i := range n {
		k.of(from+i, &t)
		dst[i] = t.cost
	}
	return n
}

// short computes the costs by a short form, without taints. False means that there is
// no short form for these candidates: dst is then unchanged.
func (k *coster) short(w, n int, dst *costs) bool {
	c := k.c
	from := w * chunk
	if k.forDecode {
		k.decodes(dst, from, n)
		return true
	}
	if k.seconds {
		weight, same := k.chunkWeight(w)
		if !same || k.shared > 0 || !c.plain(w) || c.Wait == nil || c.PerToken == nil || c.PerRequest == nil || c.Overlap == nil {
			return false
		}
		k.fillSeconds(dst, weight, c.Overlap[from:from+n], c.Wait[from:from+n], c.PerToken[from:from+n], c.PerRequest[from:from+n], c.Decode[from:from+n], c.Requests[from:from+n])
		return true
	}
	if k.shared == 0 && c.plain(w) {
		prefill, decode, requests := c.Prefill[from:from+n], c.Decode[from:from+n], c.Requests[from:from+n]
		switch {
		case k.fetch > 0:
			if weight, same := k.chunkWeight(w); same && !k.track && !k.creditDecode && c.Starved.word(w) == 0 {
				k.fetching(dst, weight, c.Overlap[from:from+n], decode, requests)
				return true
			}
		case !k.track && !k.creditDecode:
			k.untracked(dst, decode, requests)
			return true
		case k.track && c.Overlap != nil:
			overlap := c.Overlap[from : from+n]
			weight, same := k.chunkWeight(w)
			if same && weight == 1 {
				k.tracked(dst, overlap, prefill, decode, requests)
				return true
			}
			if same {
				k.weighted(dst, weight, overlap, prefill, decode, requests)
				return true
			}
		}
	}
	return false
}

// plain reports whether the candidates of a word have a known load and hold nothing on
// host or disk.
func (c *Candidates) plain(w int) bool {
	return c.LoadUnknown.word(w) == 0 && none(c.Host, w) && none(c.Disk, w)
}

// none reports whether a column is zero for all candidates of a word.
func none(column []uint32, w int) bool {
	if column == nil {
		return true
	}
	var any uint32
	for _, n := range column[w*chunk : min(w*chunk+chunk, len(column))] {
		any |= n
	}
	return any == 0
}

// chunkWeight returns the factor for the overlaps in a word. If the factor differs
// between the candidates that can be picked, the second result is false.
func (k *coster) chunkWeight(w int) (weight float64, same bool) {
	in := k.c.in.word(w)
	estimated := k.c.Estimated.word(w) & in
	degraded := k.c.Degraded.word(w) & in &^ estimated
	switch {
	case k.allEstimated || estimated == in && in != 0:
		return k.estWeight, true
	case estimated|degraded == 0:
		return 1, true
	case degraded == in:
		return k.degWeight, true
	default:
		return 0, false
	}
}

// tracked is the short form for overlaps that are known. In most chunks no candidate holds anything of the
// prompt, and requests seldom have a weight: so each chunk is tested for these cases once.
func (k *coster) tracked(dst *costs, overlap []uint32, prefill, decode, requests []float64) {
	n := len(overlap)
	if n > chunk || len(prefill) < n || len(decode) < n || len(requests) < n {
		return // this lets the compiler leave out the checks in the loops
	}
	var most uint32 // at least as great as the greatest overlap
	for _, o := range overlap {
		most |= o
	}
	isl, perToken, credit, added := k.isl, k.perToken, k.scaledCredit, k.newBlocks
	switch {
	case k.reqWeight != 0 || float64(k.blockSize*float64(most)) > isl:
		k.weighted(dst, 1, overlap, prefill, decode, requests)
	case most == 0:
		for i := range n {
			dst[i] = float64((prefill[i]+isl)*perToken) + (decode[i] + added)
		}
	default:
		for i := range n {
			left := float64((prefill[i]+isl)*perToken) - float64(credit*float64(overlap[i]))
			if left < 0 {
				left = 0
			}
			dst[i] = left + (decode[i] + added)
		}
	}
}

// weighted is the short form for overlaps that may count for less, and for requests that
// may have a weight.
func (k *coster) weighted(dst *costs, weight float64, overlap []uint32, prefill, decode, requests []float64) {
	n := len(overlap)
	if n > chunk || len(prefill) < n || len(decode) < n || len(requests) < n {
		return
	}
	isl, size, perToken, credit := k.isl, k.blockSize, k.perToken, k.scaledCredit
	reqWeight, added := k.reqWeight, k.newBlocks
	for i := range n {
		o := float64(weight * float64(overlap[i]))
		prompt := isl
		if cached := whole(float64(size * o)); cached > prompt {
			prompt = cached
		}
		left := float64((prefill[i]+prompt)*perToken) - float64(credit*o)
		if left < 0 {
			left = 0
		}
		dst[i] = left + (decode[i] + added + float64(reqWeight*requests[i]))
	}
}

// untracked is the short form if only running answers count.
func (k *coster) untracked(dst *costs, decode, requests []float64) {
	n := len(decode)
	if n > chunk || len(requests) < n {
		return
	}
	reqWeight, added := k.reqWeight, k.newBlocks
	for i := range n {
		dst[i] = decode[i] + added + float64(reqWeight*requests[i])
	}
}

// fetching is the short form if running answers count, and blocks that have to be
// fetched.
func (k *coster) fetching(dst *costs, weight float64, overlap []uint32, decode, requests []float64) {
	n := len(overlap)
	if n > chunk || len(decode) < n || len(requests) < n {
		return
	}
	reqWeight, added, fetch, prompt := k.reqWeight, k.newBlocks, k.fetch, k.prompt
	for i := range n {
		lacking := prompt - float64(weight*float64(overlap[i]))
		if lacking < 0 {
			lacking = 0
		}
		dst[i] = decode[i] + added + float64(reqWeight*requests[i]) + float64(fetch*lacking)
	}
}

// each calls f with the cost of every candidate that can be picked.
func (k *coster) each(f func(i int, cost float64)) {
	var buf costs
	for w, in := range k.c.in {
		if in == 0 {
			continue
		}
		k.fill(w, &buf)
		for ; in != 0; in &= in - 1 {
			j := bits.TrailingZeros64(in)
			f(w*chunk+j, buf[j])
		}
	}
}
