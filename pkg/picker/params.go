package picker

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Params are the parameters of a pick. Zero is a value like others, not the default:
// start from [DefaultParamsFor] the role that is picked.
type Params struct {
	// Mode is how the candidate is chosen. Default kv.
	Mode Mode

	// InSeconds says that the cost is in seconds: how long the rank is believed to be busy, how long this
	// prompt takes there, and what both cost those who come later (Candidates.Wait, Request.Flow). Then
	// none of the fields that weigh blocks against each other has an effect: OverlapScoreCredit,
	// PrefillLoadScale, DecodeActiveRequestWeight, FetchCost. Decode is picked by what it does to the time
	// between tokens (Candidates.PerStep, Request.AnswerTokens). False: the cost is in blocks of KV
	// cache, as in NVIDIA Dynamo. Default true.
	InSeconds bool

	// BlockSize is the number of tokens in a KV block; less than 1 counts as 1. It must
	// be that of the pool's workers. Default 16.
	BlockSize int

	// OverlapScoreCredit is how many blocks one cached block takes off the prefill
	// term. Default 1, for whole requests 2. A higher value keeps conversations on the
	// same ranks, with less even load; 0 ignores the cache.
	OverlapScoreCredit float64

	// PrefillLoadScale multiplies the prefill term. Default 1, for whole requests 10. With
	// a higher value prompts count more, compared with running answers.
	PrefillLoadScale float64

	// DecodeActiveRequestWeight is how many blocks each request in flight adds to the
	// cost. Default 0.
	DecodeActiveRequestWeight float64

	// HostHitWeight and DiskHitWeight are how much a block in host memory or on disk is
	// worth, compared with a block on the device. Defaults 0.75 and 0.25.
	HostHitWeight float64
	DiskHitWeight float64

	// SharedCacheMultiplier is how much a block is worth that the rank can fetch from
	// the cache that all workers share, compared with a block on the device. Default
	// 0.5; 0 ignores that cache.
	SharedCacheMultiplier float64

	// EstimatedOverlapWeight is how much a block of an estimated overlap is worth,
	// compared with a known block. An overlap is estimated if the request has no token
	// ids or the rank publishes no events. Default 0.5; 0 ignores estimates.
	EstimatedOverlapWeight float64

	// DegradedOverlapWeight is the same for a rank whose event stream is interrupted or
	// has a gap. Default 0.5; 1 believes such a rank like any other, 0 ignores what it
	// holds until its stream is whole again. A rank is not degraded because the index
	// has dropped some of its blocks when memory was short: the blocks still known are
	// right, and a lower weight would count the missing ones twice.
	DegradedOverlapWeight float64

	// FetchCost is the cost of each block of the prompt that a decode rank has to fetch
	// from prefill (Request.FetchesLacking), in blocks of running answers: 0 to 100.
	// Default 1. A higher value keeps conversations where they were decoded, with less
	// even load; 0 ignores which rank holds what.
	FetchCost float64

	// Temperature above 0 draws by softmax over normalised costs. Default 0: the lowest
	// cost is picked. With 0.1 another candidate than the cheapest is rare; with 1 the
	// picks are widely spread.
	Temperature float64

	// TrackPrefillTokens says that the cost includes the queued prompt tokens and this
	// prompt. Default true.
	TrackPrefillTokens bool

	// PrefillTokensThreshold is the most prompt tokens that a rank may have booked and
	// still be picked. Default 0: no limit. A lower value keeps queues short and leaves
	// warm ranks sooner.
	PrefillTokensThreshold int64

	// DecodeBlocksThreshold is the greatest share of its KV blocks that a rank may have
	// booked for answers and still be picked. Default 0: no limit. It applies to ranks
	// whose capacity is known. Blocks that answers share are booked twice, so a value
	// above 1 can make sense.
	DecodeBlocksThreshold float64

	// ServeOverloaded says that all candidates can be picked if every one is over a
	// threshold. Default false: the request is refused
	// (docs/behaviour.md#nobody-eligible).
	ServeOverloaded bool
}

// DefaultParams returns the defaults of the cost in blocks.
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

// DefaultParamsFor returns the documented defaults of picks for the role.
func DefaultParamsFor(role worker.Role) Params {
	p := BlockParamsFor(role)
	p.InSeconds = true
	return p
}

// BlockParamsFor returns the defaults of the cost in blocks for the role. A whole request is
// booked as prompt tokens and, with all of its prompt, as blocks of a running answer. Such a
// block costs the next prompt a small part of what a queued one does, so prompt work has a
// scale; and cached work is worth more than its own time, since others wait for what is
// computed again (docs/routing-quality.md#whole-requests).
func BlockParamsFor(role worker.Role) Params {
	p := DefaultParams()
	if role == worker.Aggregated {
		p.PrefillLoadScale, p.OverlapScoreCredit = 10, 2
	}
	return p
}

// DecodeOverride returns p for the decode pick of a disaggregated request. Since the
// prompt is prefilled elsewhere, cached blocks give no credit and prompt tokens are not
// counted. Blocks that decode has to fetch still cost. Everything else is kept, such as
// a temperature that the request asks for (docs/behaviour.md#decode-pick).
func DecodeOverride(p Params) Params {
	p.OverlapScoreCredit = 0
	p.SharedCacheMultiplier = 0
	p.TrackPrefillTokens = false
	return p
}

// ValidateFor returns every fault of p in picks for the role, joined, or nil. Apart
// from those of Validate, a parameter that has no effect in such picks must be at its
// default, since whoever sets it expects an effect. The decode pick uses
// DecodeOverride, and only decode fetches KV.
func (p *Params) ValidateFor(role worker.Role) error {
	d := BlockParamsFor(role)
	const elsewhere, seconds = "the prompt is prefilled elsewhere", "the cost is in seconds: with cost: blocks it has an effect"
	var idle []param
	switch role {
	case worker.Decode:
		idle = []param{
			{"overlap_score_credit", p.OverlapScoreCredit, d.OverlapScoreCredit, elsewhere},
			{"prefill_load_scale", p.PrefillLoadScale, d.PrefillLoadScale, elsewhere},
			{"host_cache_hit_weight", p.HostHitWeight, d.HostHitWeight, elsewhere},
			{"disk_cache_hit_weight", p.DiskHitWeight, d.DiskHitWeight, elsewhere},
			{"shared_cache_multiplier", p.SharedCacheMultiplier, d.SharedCacheMultiplier, elsewhere},
			{"track_prefill_tokens", p.TrackPrefillTokens, d.TrackPrefillTokens, elsewhere},
		}
	case worker.Prefill:
		idle = []param{{"active_decode_blocks_threshold", p.DecodeBlocksThreshold, d.DecodeBlocksThreshold, "a prefill worker answers nothing"}}
		fallthrough
	default:
		idle = append(idle, param{"fetch_cost", p.FetchCost, d.FetchCost, "only a decode worker fetches KV"})
	}
	if p.InSeconds {
		for _, i := range []param{
			{"overlap_score_credit", p.OverlapScoreCredit, d.OverlapScoreCredit, seconds},
			{"prefill_load_scale", p.PrefillLoadScale, d.PrefillLoadScale, seconds},
			{"decode_active_request_weight", p.DecodeActiveRequestWeight, d.DecodeActiveRequestWeight, seconds},
			{"fetch_cost", p.FetchCost, d.FetchCost, seconds},
			{"temperature", p.Temperature, d.Temperature, seconds},
			{"track_prefill_tokens", p.TrackPrefillTokens, d.TrackPrefillTokens, seconds},
		} {
			if !slices.ContainsFunc(idle, func(o param) bool { return o.name == i.name }) {
				idle = append(idle, i)
			}
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

// param is a number or a bool of Params, with its default.
type param struct {
	name    string
	is, def any
	why     string // why it has no effect
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
		{"prefill_load_scale", p.PrefillLoadScale, math.MaxFloat32},
		{"decode_active_request_weight", p.DecodeActiveRequestWeight, math.MaxFloat32},
		{"temperature", p.Temperature, math.MaxFloat32},
		{"host_cache_hit_weight", p.HostHitWeight, 1},
		{"disk_cache_hit_weight", p.DiskHitWeight, 1},
		{"fetch_cost", p.FetchCost, 100},
		{"shared_cache_multiplier", p.SharedCacheMultiplier, math.MaxFloat32},
		{"estimated_overlap_weight", p.EstimatedOverlapWeight, 1},
		{"degraded_overlap_weight", p.DegradedOverlapWeight, 1},
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
