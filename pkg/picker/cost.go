package picker

import (
	"math"

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

	// Estimated: every overlap of this request is an estimate.
	Estimated bool
}

// Candidate is one rank with the numbers it is judged by. Counts must not be
// negative.
type Candidate struct {
	Rank worker.Rank

	OverlapBlocks uint32 // leading blocks of the prompt on the device
	HostBlocks    uint32 // blocks in host memory beyond those
	DiskBlocks    uint32 // blocks on disk beyond those
	SharedBlocks  uint32 // of Request.NewBlocks, those that running requests hold here already

	ActivePrefillTokens int64 // prompt tokens booked and not yet done
	ActiveDecodeBlocks  int64 // KV blocks booked for running answers
	ActiveRequests      int32

	// TaintWeight is the sum of the weights of the request's preferred taints
	// that the worker has; 0 where there is none or the request is pinned.
	TaintWeight float32

	Estimated   bool // OverlapBlocks is an estimate
	LoadUnknown bool // the Active… numbers mean nothing
}

// coster is what of a cost does not depend on the candidate, worked out once a
// pick.
type coster struct {
	isl          int64
	blockSize    float64
	blockTokens  int64
	perBlock     float64 // 1 / blockSize
	credit       float64
	scale        float64
	reqWeight    float64
	hostWeight   float64
	diskWeight   float64
	estWeight    float64
	newBlocks    int64
	decayPerTok  float64 // decay D, block size and request blocks in one factor
	leastPrefill int64   // the least ActivePrefillTokens of all candidates
	track        bool
	reuse        bool
	allEstimated bool
	creditDecode bool // the decode pick's special case
}

func newCoster(req *Request, cands []Candidate, p *Params) coster {
	b := max(p.BlockSize, 1)
	k := coster{
		isl:         int64(max(req.ISLTokens, 0)),
		blockSize:   float64(b),
		blockTokens: int64(b),
		perBlock:    1 / float64(b),
		credit:      p.OverlapScoreCredit,
		scale:       p.PrefillLoadScale,
		reqWeight:   p.DecodeActiveRequestWeight,
		hostWeight:  p.HostHitWeight,
		diskWeight:  p.DiskHitWeight,
		estWeight:   p.EstimatedOverlapWeight,
		newBlocks:   int64(max(req.NewBlocks, 0)),
		track:       p.TrackPrefillTokens,
		reuse:       p.AssumeKVReuse,

		allEstimated: req.Estimated,
		creditDecode: req.Role == worker.Decode && !p.TrackPrefillTokens && p.OverlapScoreCredit > 0,
	}
	if p.OverlapScoreCreditDecay > 0 {
		k.decayPerTok = p.OverlapScoreCreditDecay / float64(b) / float64(max(req.RequestBlocks, 1))
		k.leastPrefill = leastPrefill(cands)
	}
	return k
}

// leastPrefill is 0 when no candidate's load is known.
func leastPrefill(cands []Candidate) int64 {
	least := int64(-1)
	for i := range cands {
		if t := cands[i].ActivePrefillTokens; !cands[i].LoadUnknown && (least < 0 || t < least) {
			least = t
		}
	}
	return max(least, 0)
}

// terms are the parts of one candidate's cost.
type terms struct {
	cached       int64 // tokens
	credit       float64
	creditBlocks float64
	prefill      float64 // blocks
	decode       float64 // blocks, request weight included
	cost         float64
}

// of works out the terms of one candidate.
func (k *coster) of(c *Candidate, t *terms) {
	overlap, lower := float64(c.OverlapBlocks), 0.0
	t.cached = int64(c.OverlapBlocks) * k.blockTokens
	if c.HostBlocks|c.DiskBlocks != 0 || c.Estimated || k.allEstimated {
		lower = k.hostWeight*float64(c.HostBlocks) + k.diskWeight*float64(c.DiskBlocks)
		if c.Estimated || k.allEstimated {
			overlap *= k.estWeight
			lower *= k.estWeight
		}
		t.cached = int64(math.Round(k.blockSize * (overlap + lower)))
	}
	var active, decodeBlocks int64
	var requests float64
	if !c.LoadUnknown {
		active, decodeBlocks, requests = c.ActivePrefillTokens, c.ActiveDecodeBlocks, float64(c.ActiveRequests)
	}
	t.credit = k.credit
	if k.decayPerTok > 0 {
		t.credit /= 1 + k.decayPerTok*float64(max(active-k.leastPrefill, 0))
	}
	t.creditBlocks = float64(t.credit*overlap) + lower

	t.prefill = 0
	if k.track {
		raw := k.isl
		if !c.LoadUnknown {
			raw = active + max(k.isl, t.cached) // uncached and cached together
		}
		if left := float64(float64(raw)*k.perBlock) - t.creditBlocks; left > 0 {
			t.prefill = k.scale * left
		}
	}
	added := k.newBlocks
	if k.reuse {
		added = max(0, added-int64(c.SharedBlocks))
	}
	t.decode = float64(decodeBlocks + added)
	if k.creditDecode {
		t.decode = max(0, t.decode-t.creditBlocks)
	}
	t.decode += float64(k.reqWeight * requests)
	t.cost = t.prefill + t.decode
	if c.TaintWeight != 0 {
		t.cost *= math.Exp(-math.Tanh(float64(c.TaintWeight)))
	}
}

// plain reports whether of would take no other way than cost does for c.
func (c *Candidate) plain() bool {
	return c.HostBlocks|c.DiskBlocks|c.SharedBlocks == 0 && c.TaintWeight == 0 && !c.Estimated && !c.LoadUnknown
}

// straight reports whether the request lets plain candidates be judged by cost.
func (k *coster) straight() bool {
	return k.track && k.decayPerTok == 0 && !k.allEstimated
}

// cost is what of works out for a plain candidate of a straight request, to
// the last bit: the same operations without the choices. (The conversions of
// products keep processors that fuse a product and a sum from rounding the two
// forms differently; equal costs would then not be ties.) It is short enough
// for the compiler to put it into the loop, which halves the time of a pick.
func (k *coster) cost(c *Candidate) float64 {
	raw := c.ActivePrefillTokens + max(k.isl, int64(c.OverlapBlocks)*k.blockTokens)
	left := float64(float64(raw)*k.perBlock) - float64(k.credit*float64(c.OverlapBlocks))
	if left < 0 {
		left = 0
	}
	return float64(k.scale*left) + (float64(c.ActiveDecodeBlocks+k.newBlocks) + float64(k.reqWeight*float64(c.ActiveRequests)))
}

// UncachedTokens is how many tokens of the prompt the candidate would have to
// prefill: what a booking adds to its ActivePrefillTokens.
func UncachedTokens(req *Request, c *Candidate, p *Params) int64 {
	k := newCoster(req, nil, p)
	var t terms
	k.of(c, &t)
	return max(0, k.isl-t.cached)
}
