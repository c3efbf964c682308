package picker

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Override is the parameters that one request sets for its own picks: the
// RouterConfigOverride of NVIDIA Dynamo, with Dynamo's names. A nil field changes
// nothing.
type Override struct {
	OverlapScoreCredit    *float64 `json:"overlap_score_credit"`
	PrefillLoadScale      *float64 `json:"prefill_load_scale"`
	SharedCacheMultiplier *float64 `json:"shared_cache_multiplier"`
	Temperature           *float64 `json:"router_temperature"`
	TrackPrefillTokens    *bool    `json:"track_prefill_tokens"`

	// AssumeKVReuse can only be false: it is not known which blocks running requests
	// share, so each request is booked with all of its own blocks.
	AssumeKVReuse *bool `json:"assume_kv_reuse"`

	// OverlapScoreWeight is the older name of PrefillLoadScale. With 0 it also sets
	// OverlapScoreCredit to 0. The newer names win over it.
	OverlapScoreWeight *float64 `json:"overlap_score_weight"`
}

// ErrAssumesReuse refuses an override with AssumeKVReuse true.
var ErrAssumesReuse = errors.New("picker: override: assume_kv_reuse true: expected false or none: blocks that running requests share are not known")

// ParseOverride reads the JSON object of an override. Unknown members are ignored, and
// null changes nothing. An error names the member and what was expected.
func ParseOverride(data []byte) (Override, error) {
	var o Override
	if err := json.Unmarshal(data, &o); err != nil {
		return Override{}, fmt.Errorf("picker: override: expected an object of numbers and booleans: %w", err)
	}
	for _, f := range []struct {
		name string
		v    *float64
	}{
		{"overlap_score_credit", o.OverlapScoreCredit}, {"prefill_load_scale", o.PrefillLoadScale},
		{"router_temperature", o.Temperature}, {"overlap_score_weight", o.OverlapScoreWeight},
		{"shared_cache_multiplier", o.SharedCacheMultiplier},
	} {
		if f.v != nil && !(*f.v >= 0 && *f.v <= math.MaxFloat32) {
			return Override{}, fmt.Errorf("picker: override: %s %v: expected a number from 0 to %v", f.name, *f.v, math.MaxFloat32)
		}
	}
	if o.AssumeKVReuse != nil && *o.AssumeKVReuse {
		return Override{}, ErrAssumesReuse
	}
	return o, nil
}

// Apply returns p with what the override sets. For the decode pick of a pair
// DecodeOverride must be applied after it: a request cannot set what has no meaning
// there (docs/behaviour.md#decode-pick).
func (o *Override) Apply(p Params) Params {
	if w := o.OverlapScoreWeight; w != nil {
		p.PrefillLoadScale = *w
		if *w == 0 {
			p.OverlapScoreCredit = 0
		}
	}
	if o.OverlapScoreWeight != nil || o.OverlapScoreCredit != nil || o.PrefillLoadScale != nil || o.Temperature != nil || o.TrackPrefillTokens != nil {
		p.InSeconds = false // they weigh blocks
	}
	set(&p.OverlapScoreCredit, o.OverlapScoreCredit)
	set(&p.PrefillLoadScale, o.PrefillLoadScale)
	set(&p.Temperature, o.Temperature)
	set(&p.SharedCacheMultiplier, o.SharedCacheMultiplier)
	set(&p.TrackPrefillTokens, o.TrackPrefillTokens)
	return p
}

func set[T any](dst *T, v *T) {
	if v != nil {
		*dst = *v
	}
}
