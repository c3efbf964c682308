package picker

import (
	"math"
	"math/bits"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Request is what the picker needs to know of a request.
type Request struct {
	// Role is the leg that is picked for.
	Role worker.Role

	// ISLTokens is the length of the prompt.
	ISLTokens int

	// RequestBlocks is the number of whole blocks of the prompt. It scales
	// the decay of the credit.
	RequestBlocks int

	// NewBlocks is how many KV blocks the request adds to the active ones of
	// the rank it lands on; 0 for a prefill pick, where answers do not run.
	NewBlocks int

	// SharedBlocks is the number of leading blocks of the prompt in the cache that
	// all workers share. Every candidate can fetch those of them that it does not have.
	SharedBlocks int

	// FetchesLacking: the prompt is prefilled elsewhere, and the rank that is picked for
	// decode fetches of its RequestBlocks those that it does not have.
	FetchesLacking bool

	// Estimated: every overlap of this request is an estimate.
	Estimated bool
}

// coster is what of a cost does not depend on the candidate, worked out once a
// pick.
type coster struct {
	c *Candidates

	isl          float64
	blockSize    float64
	perToken     float64 // what a token of prompt costs: scale / blockSize
	credit       float64
	scaledCredit float64 // scale × credit
	scale        float64
	reqWeight    float64
	hostWeight   float64
	diskWeight   float64
	sharedWeight float64
	fetch        float64 // what a block that is to be fetched costs; 0 where nothing is, or all
	prompt       float64 // whole blocks of the prompt
	mostHeld     float64 // of them, by any who can be picked: what a starved one counts with
	shared       float64 // leading blocks in the shared cache; 0 where they are worth nothing
	estWeight    float64
	degWeight    float64
	newBlocks    float64
	decayPerTok  float64 // decay D, block size and request blocks in one factor
	leastPrefill float64 // the least of all who can be picked
	track        bool
	allEstimated bool
	creditDecode bool // the decode pick's special case

	// The factor of the taint weight that was met last: most candidates that
	// have one have the same.
	taint  float32
	factor float64
}

// newCoster reads the columns of c, and who can be picked where the cost of one
// depends on the others.
func newCoster(req *Request, c *Candidates, p *Params) coster {
	b := float64(max(p.BlockSize, 1))
	k := coster{
		c:          c,
		isl:        float64(max(req.ISLTokens, 0)),
		blockSize:  b,
		perToken:   p.PrefillLoadScale / b,
		credit:     p.OverlapScoreCredit,
		scale:      p.PrefillLoadScale,
		reqWeight:  p.DecodeActiveRequestWeight,
		hostWeight: p.HostHitWeight,
		diskWeight: p.DiskHitWeight,

		sharedWeight: p.SharedCacheMultiplier,

		estWeight: p.EstimatedOverlapWeight,
		degWeight: p.DegradedOverlapWeight,
		newBlocks: float64(max(req.NewBlocks, 0)),
		track:     p.TrackPrefillTokens,

		allEstimated: req.Estimated,
		factor:       1, // of weight 0

		creditDecode: req.Role == worker.Decode && !p.TrackPrefillTokens && p.OverlapScoreCredit > 0,
	}
	k.scaledCredit = k.scale * k.credit
	if req.FetchesLacking && c.Overlap != nil {
		k.fetch, k.prompt = p.FetchCost, float64(max(req.RequestBlocks, 0))
		k.mostHeld = k.heldMost()
	}
	if k.sharedWeight > 0 {
		k.shared = float64(max(req.SharedBlocks, 0))
	}
	if p.OverlapScoreCreditDecay > 0 {
		k.decayPerTok = p.OverlapScoreCreditDecay / b / float64(max(req.RequestBlocks, 1))
		k.leastPrefill = c.leastPrefill()
	}
	return k
}

// leastPrefill is 0 when the load of nobody is known.
func (c *Candidates) leastPrefill() float64 {
	least := math.Inf(1)
	for w, in := range c.in {
		in &^= c.LoadUnknown.word(w)
		if in == math.MaxUint64 {
			for _, t := range c.Prefill[w*chunk : w*chunk+chunk] {
				if t < least {
					least = t
				}
			}
			continue
		}
		for ; in != 0; in &= in - 1 {
			if t := c.Prefill[w*chunk+bits.TrailingZeros64(in)]; t < least {
				least = t
			}
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// terms are the parts of one candidate's cost.
type terms struct {
	cached       float64 // tokens
	lacking      float64 // blocks that are to be fetched
	shared       float64 // blocks of the shared cache that are not in its own
	credit       float64
	creditBlocks float64
	prefill      float64 // blocks
	decode       float64 // blocks, request weight and what is to be fetched included
	cost         float64
}

// weight is what the overlap of a candidate is worth.
func (k *coster) weight(i int) float64 {
	switch {
	case k.allEstimated || k.c.Estimated.Has(i):
		return k.estWeight
	case k.c.Degraded.Has(i):
		return k.degWeight
	default:
		return 1
	}
}

// of works out the terms of one candidate: the formula of the package comment.
//
// The conversions of products keep processors that fuse a product and a sum
// from rounding this form and those of fill.go differently; equal costs would
// then not be ties.
func (k *coster) of(i int, t *terms) {
	c, weight := k.c, k.weight(i)
	overlap := float64(weight * float64(at(c.Overlap, i)))
	lower := 0.0
	if c.Host != nil || c.Disk != nil {
		lower = weight * (float64(k.hostWeight*float64(at(c.Host, i))) + float64(k.diskWeight*float64(at(c.Disk, i))))
	}
	t.cached = whole(float64(k.blockSize * (overlap + lower)))
	if k.shared > 0 {
		t.shared = max(0, k.shared-float64(at(c.Overlap, i))-float64(at(c.Host, i))-float64(at(c.Disk, i)))
		lower += float64(k.sharedWeight * t.shared)
	}
	active, decodeBlocks, requests := c.Prefill[i], c.Decode[i], c.Requests[i]
	unknown := c.LoadUnknown.Has(i)
	if unknown {
		active, decodeBlocks, requests = 0, 0, 0
	}
	t.credit = k.credit
	scaledCredit := k.scaledCredit
	if over := active - k.leastPrefill; k.decayPerTok > 0 && over > 0 {
		t.credit /= 1 + float64(k.decayPerTok*over)
		scaledCredit /= 1 + float64(k.decayPerTok*over)
	}
	t.creditBlocks = float64(t.credit*overlap) + lower

	t.prefill = 0
	if k.track {
		raw := k.isl
		if !unknown {
			raw = active + max(k.isl, t.cached) // uncached and cached together
		}
		// scale × max(0, raw in blocks - credit blocks)
		t.prefill = max(0, float64(raw*k.perToken)-float64(scaledCredit*overlap)-float64(k.scale*lower))
	}
	t.decode = decodeBlocks + k.newBlocks
	if k.creditDecode {
		t.decode = max(0, t.decode-t.creditBlocks)
	}
	t.decode += float64(k.reqWeight * requests)
	if k.fetch > 0 {
		t.lacking = k.lacking(i, overlap)
		t.decode += float64(k.fetch * t.lacking)
	}
	t.cost = t.prefill + t.decode
	if taint := at(c.Taint, i); taint != 0 {
		t.cost *= k.taintFactor(taint)
	}
}

// lacking is how many blocks of the prompt a candidate with the overlap would fetch.
func (k *coster) lacking(i int, overlap float64) float64 {
	if k.c.Starved.Has(i) {
		overlap = max(overlap, k.mostHeld)
	}
	return max(0, k.prompt-overlap)
}

// heldMost is the greatest overlap, by its worth, where anybody is starved.
func (k *coster) heldMost() (most float64) {
	c := k.c
	if c.Starved.Count() == 0 {
		return 0
	}
	for i, o := range c.Overlap {
		if o > 0 && c.in.Has(i) {
			most = max(most, float64(k.weight(i)*float64(o)))
		}
	}
	return most
}

// taintFactor is what a taint weight multiplies a cost by.
func (k *coster) taintFactor(weight float32) float64 {
	if weight != k.taint {
		k.taint, k.factor = weight, math.Exp(-math.Tanh(float64(weight)))
	}
	return k.factor
}

// whole rounds a number of tokens, halves up.
func whole(tokens float64) float64 { return float64(int64(tokens + 0.5)) }

// uncached is how many tokens of the prompt the candidate would have to
// prefill: what a booking adds to its prefill tokens.
func (k *coster) uncached(i int) int64 {
	var t terms
	k.of(i, &t)
	return int64(max(0, k.isl-t.cached))
}

// UncachedTokens is how many tokens of the prompt one candidate would have to
// prefill, as the cost counts them. Pick returns that of the picked one.
func UncachedTokens(req *Request, overlap uint32, p *Params) int64 {
	b, weight := float64(max(p.BlockSize, 1)), 1.0
	if req.Estimated {
		weight = p.EstimatedOverlapWeight
	}
	return int64(max(0, float64(max(req.ISLTokens, 0))-whole(b*float64(weight*float64(overlap)))))
}
