package picker

import (
	"math"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Request is what the picker needs to know about a request.
type Request struct {
	// Role is the role that the pick is for.
	Role worker.Role

	// ISLTokens is the length of the prompt.
	ISLTokens int

	// RequestBlocks is the number of whole blocks of the prompt. It bounds what decode fetches.
	RequestBlocks int

	// NewBlocks is how many KV blocks the request adds to the active blocks of the
	// picked rank; 0 for a prefill pick, since a prefill worker runs no answers.
	NewBlocks int

	// SharedBlocks is the number of leading blocks of the prompt in the cache that all
	// workers share. Each candidate can fetch those of them that it does not hold.
	SharedBlocks int

	// FetchesLacking says that the prompt is prefilled elsewhere, and that the rank
	// picked for decode fetches those of the RequestBlocks that it does not hold.
	FetchesLacking bool

	// Estimated says that the overlaps of all candidates are estimates.
	Estimated bool

	// Flow is what has lately come to the candidates, for a cost in seconds.
	Flow Flow

	// Target is within which time the prompt is to be computed, in seconds; 0: there is none. A candidate
	// that is believed to keep it is picked before any that is not. Only a cost in seconds heeds it.
	Target float64

	// AnswerTokens is how many the answer is expected to have at most, and HandOff how many seconds it takes
	// to bring a token of the prompt to decode; both for decode picks by a cost in seconds.
	AnswerTokens, HandOff float64
}

// coster is the part of the costs that is the same for all candidates, computed once
// for a pick.
type coster struct {
	c *Candidates

	isl          float64
	blockSize    float64
	perToken     float64 // cost of one token of the prompt: scale / blockSize
	credit       float64
	scaledCredit float64 // scale × credit
	scale        float64
	reqWeight    float64
	hostWeight   float64
	diskWeight   float64
	sharedWeight float64
	fetch        float64 // cost of one block that has to be fetched; 0 if nothing is fetched, or each rank fetches all
	prompt       float64 // whole blocks of the prompt
	mostHeld     float64 // the greatest overlap of any that can be picked: a starved candidate counts with it
	shared       float64 // leading blocks in the shared cache; 0 if they are worth nothing
	estWeight    float64
	degWeight    float64
	newBlocks    float64
	track        bool
	allEstimated bool
	creditDecode bool // a decode pick that gives credit; see the package comment

	seconds   bool
	forDecode bool    // and the prompt is prefilled elsewhere
	pressure  float64 // see Flow
	bar       float64 // costs above it need not be exact
	target    float64 // seconds

	// Of a decode pick by seconds: the answer's tokens, the blocks that it comes to have, and what a block
	// costs that is computed again.
	answer, grows, again float64

	// The taint weight seen last, and its factor: most candidates with a taint weight
	// have the same one.
	taint  float32
	factor float64
}

// newCoster reads the columns of c. For costs that depend on the other candidates it
// also reads which candidates can be picked.
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
		factor:       1, // the factor of taint weight 0

		creditDecode: req.Role == worker.Decode && !p.TrackPrefillTokens && p.OverlapScoreCredit > 0,
	}
	k.scaledCredit = k.scale * k.credit
	if p.InSeconds {
		k.seconds, k.pressure, k.target, k.bar = true, req.Flow.pressure(), math.Inf(1), math.Inf(1)
		if req.Target > 0 {
			k.target = req.Target
		}
		k.answer = max(1, float64(usual*req.AnswerTokens))
		k.grows, k.again = k.answer/b, float64(b*unlearnedToken)
	}
	if req.FetchesLacking && c.Overlap != nil {
		k.fetch, k.prompt = p.FetchCost, float64(max(req.RequestBlocks, 0))
		if p.InSeconds {
			k.fetch = float64(b * req.HandOff)
		}
		k.mostHeld = k.heldMost()
	}
	k.forDecode = p.InSeconds && req.Role == worker.Decode
	if k.sharedWeight > 0 {
		k.shared = float64(max(req.SharedBlocks, 0))
	}
	return k
}

// terms are the terms of one candidate's cost.
type terms struct {
	cached       float64 // tokens
	lacking      float64 // blocks that have to be fetched
	shared       float64 // blocks of the shared cache that the candidate does not hold
	creditBlocks float64
	prefill      float64 // blocks
	decode       float64 // blocks, including the weight of requests and the cost of fetching
	wait, own    float64 // seconds, of a cost in seconds
	late         bool    // the candidate is believed to miss the target
	cost         float64
}

// weight is the factor for the overlap of a candidate: less than 1 for an estimate or a
// degraded rank.
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

// coster.of computes the terms of one candidate: a formula of the package comment.
//
// Each product is converted to float64 so that no processor fuses it with a sum. A
// fused product would be rounded differently here and in fill.go, and equal costs would
// then differ.
func (k *coster) of(i int, t *terms) {
	overlap, lower := k.held(i, t)
	switch {
	case k.forDecode:
		var cost costs
		k.decodes(&cost, i, 1)
		t.cost, t.decode = cost[0], cost[0]
		if k.fetch > 0 {
			t.lacking = k.lacking(i, overlap)
		}
	case k.seconds:
		k.inSeconds(i, overlap, lower, t)
	default:
		k.inBlocks(i, overlap, lower, t)
	}
	if taint := at(k.c.Taint, i); taint != 0 {
		t.cost = k.tainted(t.cost, taint)
	}
}

// held returns what counts of the prompt as cached for the candidate, in blocks: on the device, and
// below it or in the shared cache.
func (k *coster) held(i int, t *terms) (overlap, lower float64) {
	c, weight := k.c, k.weight(i)
	overlap = float64(weight * float64(at(c.Overlap, i)))
	if c.Host != nil || c.Disk != nil {
		lower = weight * (float64(k.hostWeight*float64(at(c.Host, i))) + float64(k.diskWeight*float64(at(c.Disk, i))))
	}
	t.cached = whole(float64(k.blockSize * (overlap + lower)))
	if k.shared > 0 {
		t.shared = max(0, k.shared-float64(at(c.Overlap, i))-float64(at(c.Host, i))-float64(at(c.Disk, i)))
		lower += float64(k.sharedWeight * t.shared)
	}
	return overlap, lower
}

// inBlocks computes the terms of one candidate in KV blocks.
func (k *coster) inBlocks(i int, overlap, lower float64, t *terms) {
	c := k.c
	active, decodeBlocks, requests := c.Prefill[i], c.Decode[i], c.Requests[i]
	unknown := c.LoadUnknown.Has(i)
	if unknown {
		active, decodeBlocks, requests = 0, 0, 0
	}
	t.creditBlocks = float64(k.credit*overlap) + lower

	t.prefill = 0
	if k.track {
		raw := k.isl
		if !unknown {
			raw = active + max(k.isl, t.cached) // isl is uncached plus cached tokens; at least cached
		}
		// scale × max(0, raw in blocks - credit blocks)
		t.prefill = max(0, float64(raw*k.perToken)-float64(k.scaledCredit*overlap)-float64(k.scale*lower))
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
}

// lacking returns how many blocks of the prompt the candidate would fetch.
func (k *coster) lacking(i int, overlap float64) float64 {
	if k.c.Starved.Has(i) {
		overlap = max(overlap, k.mostHeld)
	}
	return max(0, k.prompt-overlap)
}

// heldMost returns the greatest weighted overlap of the candidates that can be picked,
// or 0 if no candidate is starved.
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

// tainted returns a cost with the taint weight. That of a candidate which misses the target stays beyond all that
// keep it.
func (k *coster) tainted(cost float64, weight float32) float64 {
	f := k.taintFactor(weight)
	if k.seconds && cost >= tooLate {
		return float64((cost-tooLate)*f) + tooLate
	}
	return cost * f
}

// taintFactor returns the factor for a cost with the taint weight.
func (k *coster) taintFactor(weight float32) float64 {
	if weight != k.taint {
		k.taint, k.factor = weight, math.Exp(-math.Tanh(float64(weight)))
	}
	return k.factor
}

// whole rounds to a whole number of tokens; halves are rounded up.
func whole(tokens float64) float64 { return float64(int64(tokens + 0.5)) }

// uncached returns how many tokens of the prompt the candidate would have to prefill. A
// booking adds them to the candidate's active prefill tokens.
func (k *coster) uncached(i int) int64 {
	var t terms
	k.of(i, &t)
	return int64(max(0, k.isl-t.cached))
}

// UncachedTokens returns how many tokens of the prompt a candidate with the overlap
// would have to prefill, as the cost counts them. For the picked candidate Pick returns
// them.
func UncachedTokens(req *Request, overlap uint32, p *Params) int64 {
	b, weight := float64(max(p.BlockSize, 1)), 1.0
	if req.Estimated {
		weight = p.EstimatedOverlapWeight
	}
	return int64(max(0, float64(max(req.ISLTokens, 0))-whole(b*float64(weight*float64(overlap)))))
}
