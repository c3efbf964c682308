package picker

import (
	"errors"
	"fmt"
	"math"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Params are the knobs of a pick. A zero is a value here, not a default: start
// from [DefaultParams].
type Params struct {
	// Mode is how the candidate is chosen. Default kv.
	Mode Mode

	// BlockSize is the number of tokens in a KV block; below 1 counts as 1.
	// It is the pool's, not a taste. Default 16.
	BlockSize int

	// OverlapScoreCredit is what one cached block takes off the prefill term,
	// in blocks. Default 1. Higher keeps conversations where they were, at
	// the price of less even load; 0 ignores the cache.
	OverlapScoreCredit float64

	// OverlapScoreCreditDecay lessens the credit of ranks that have more
	// prefill queued than the least busy one. Default 0: no decay. Higher
	// leaves a warm but busy rank sooner.
	OverlapScoreCreditDecay float64

	// PrefillLoadScale multiplies the prefill term. Default 1. Higher weighs
	// prompt work more against running answers.
	PrefillLoadScale float64

	// DecodeActiveRequestWeight adds this many blocks for each request in
	// flight. Default 0.
	DecodeActiveRequestWeight float64

	// HostHitWeight and DiskHitWeight are what a block in host memory or on
	// disk is worth, as a share of one on the device. Defaults 0.75 and 0.25.
	HostHitWeight float64
	DiskHitWeight float64

	// SharedCacheMultiplier is what a block is worth that the rank can fetch from the
	// cache that all workers share, as a share of one on the device. Default 0.5; 0
	// ignores that cache.
	SharedCacheMultiplier float64

	// EstimatedOverlapWeight is what an overlap is worth that is known only
	// by estimate (no token ids, or a rank that publishes no events), as a
	// share of a known one. Default 0.5; 0 ignores estimates.
	EstimatedOverlapWeight float64

	// DegradedOverlapWeight is the same for a rank whose event stream is cut
	// or has a gap. Default 0.5; 1 believes it as any other, 0 ignores what
	// it holds until its stream is whole again. A rank of which the index has
	// dropped blocks for want of memory is not degraded: what is still known
	// of it is so, only too little, and to halve that would be to count the
	// lack twice.
	DegradedOverlapWeight float64

	// FetchCost is what a block of the prompt costs that a decode rank has to fetch from
	// prefill (Request.FetchesLacking), in blocks of running answers: 0 to 100. Default 1.
	// Higher keeps conversations where they were decoded, at the price of less even
	// load; 0 does not ask who has what.
	FetchCost float64

	// Temperature above 0 draws by softmax over normalised costs. Default 0:
	// the lowest cost. 0.1 rarely leaves the cheapest, 1 spreads widely.
	Temperature float64

	// TrackPrefillTokens counts queued prompt tokens and this prompt in the
	// cost. Default true.
	TrackPrefillTokens bool

	// PrefillTokensThreshold is how many prompt tokens may be booked on a rank
	// that is to be picked. Default 0: any number. Lower keeps queues short and
	// leaves warm ranks sooner.
	PrefillTokensThreshold int64

	// DecodeBlocksThreshold is the share of a rank's KV blocks that may be
	// booked for answers. Default 0: any. It counts for ranks whose capacity
	// is known. Bookings count shared blocks twice, so above 1 makes sense.
	DecodeBlocksThreshold float64

	// PrefillTokensPerSecond is how fast a rank is expected to prefill: booked
	// prompt tokens grow fewer at that rate, from the oldest request of the
	// rank on, before a pick counts them. Default 0: they stay until the leg
	// ends. It is for the one who books; Pick is given numbers that have
	// decayed. At most 100,000,000, far beyond any worker, so that a year's
	// tokens are still whole numbers to a float64.
	PrefillTokensPerSecond float64

	// ServeOverloaded picks among all candidates when each is over a
	// threshold. Default false: the request is refused
	// (docs/behaviour.md#nobody-eligible).
	ServeOverloaded bool
}

const maxPrefillRate = 1e8

// DefaultParams returns the documented defaults.
func DefaultParams() Params {
	return Params{
		Mode:                   KV,
		BlockSize:              16,
		OverlapScoreCredit:     1,
		PrefillLoadScale:       1,
		HostHitWeight:          0.75,
		DiskHitWeight:          0.25,
		SharedCacheMultiplier:  0.5,
		EstimatedOverlapWeight: 0.5,
		FetchCost:              1,
		DegradedOverlapWeight:  0.5,
		TrackPrefillTokens:     true,
	}
}

// DecodeOverride returns p as the decode pick of a disaggregated request uses
// it: the prompt is prefilled elsewhere, so that nothing that is cached earns credit and
// prompt tokens are not counted. What has to be fetched costs, where that depends on
// the rank. All else is kept, a
// request's own temperature for example (docs/behaviour.md#decode-pick).
func DecodeOverride(p Params) Params {
	p.OverlapScoreCredit = 0
	p.SharedCacheMultiplier = 0
	p.TrackPrefillTokens = false
	return p
}

// ValidateFor is Validate, and refuses what does nothing in the picks of a role unless it
// is at its default: whoever sets it expects something of it. The decode pick is made with
// DecodeOverride, and only there is KV fetched.
func (p *Params) ValidateFor(role worker.Role) error {
	d := DefaultParams()
	const elsewhere, fetches = "the prompt is prefilled elsewhere", "only a decode worker fetches KV"
	idle := []param{{"fetch_cost", p.FetchCost, d.FetchCost, fetches}}
	switch role {
	case worker.Prefill:
		idle = append(idle, param{"active_decode_blocks_threshold", p.DecodeBlocksThreshold, d.DecodeBlocksThreshold, "a prefill worker answers nothing"})
	case worker.Decode:
		idle = []param{
			{"overlap_score_credit", p.OverlapScoreCredit, d.OverlapScoreCredit, elsewhere},
			{"overlap_score_credit_decay", p.OverlapScoreCreditDecay, d.OverlapScoreCreditDecay, elsewhere},
			{"prefill_load_scale", p.PrefillLoadScale, d.PrefillLoadScale, elsewhere},
			{"host_cache_hit_weight", p.HostHitWeight, d.HostHitWeight, elsewhere},
			{"disk_cache_hit_weight", p.DiskHitWeight, d.DiskHitWeight, elsewhere},
			{"shared_cache_multiplier", p.SharedCacheMultiplier, d.SharedCacheMultiplier, elsewhere},
			{"track_prefill_tokens", p.TrackPrefillTokens, d.TrackPrefillTokens, elsewhere},
			{"prefill_tokens_per_second", p.PrefillTokensPerSecond, d.PrefillTokensPerSecond, elsewhere},
		}
	}
	errs := []error{p.Validate()}
	for _, i := range idle {
		if i.is != i.def {
			errs = append(errs, fmt.Errorf("picker: %s %v: expected none: it does nothing there, since %s", i.name, i.is, i.why))
		}
	}
	return errors.Join(errs...)
}

// param is a parameter of either kind.
type param struct {
	name    string
	is, def any
	why     string // it does nothing
}

// Validate returns every fault of p, joined, or nil.
func (p *Params) Validate() error {
	var errs []error
	if p.Mode >= numModes {
		errs = append(errs, fmt.Errorf("mode %d: expected a known mode", p.Mode))
	}
	if p.BlockSize < 1 {
		errs = append(errs, fmt.Errorf("block_size %d: expected at least 1 token", p.BlockSize))
	}
	for _, f := range []struct {
		name string
		v    float64
		most float64
	}{
		{"overlap_score_credit", p.OverlapScoreCredit, math.MaxFloat32},
		{"overlap_score_credit_decay", p.OverlapScoreCreditDecay, math.MaxFloat32},
		{"prefill_load_scale", p.PrefillLoadScale, math.MaxFloat32},
		{"decode_active_request_weight", p.DecodeActiveRequestWeight, math.MaxFloat32},
		{"temperature", p.Temperature, math.MaxFloat32},
		{"host_cache_hit_weight", p.HostHitWeight, 1},
		{"disk_cache_hit_weight", p.DiskHitWeight, 1},
		{"fetch_cost", p.FetchCost, 100},
		{"shared_cache_multiplier", p.SharedCacheMultiplier, math.MaxFloat32},
		{"estimated_overlap_weight", p.EstimatedOverlapWeight, 1},
		{"degraded_overlap_weight", p.DegradedOverlapWeight, 1},
		{"prefill_tokens_per_second", p.PrefillTokensPerSecond, maxPrefillRate},
		{"active_decode_blocks_threshold", p.DecodeBlocksThreshold, math.MaxFloat32},
	} {
		if !(f.v >= 0 && f.v <= f.most) { // NaN fails too
			most := fmt.Sprintf("a number from 0 to %v", f.most)
			if f.most == math.MaxFloat32 {
				most = "a number of 0 or more"
			}
			errs = append(errs, fmt.Errorf("%s %v: expected %s", f.name, f.v, most))
		}
	}
	if p.PrefillTokensThreshold < 0 {
		errs = append(errs, fmt.Errorf("active_prefill_tokens_threshold %d: expected 0 or more", p.PrefillTokensThreshold))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("picker: %w", errors.Join(errs...))
}
