package picker

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Override is what one request asks to be weighed differently for itself: the
// RouterConfigOverride of NVIDIA Dynamo, by its names. A nil field asks for
// nothing.
type Override struct {
	OverlapScoreCredit    *float64 `json:"overlap_score_credit"`
	PrefillLoadScale      *float64 `json:"prefill_load_scale"`
	SharedCacheMultiplier *float64 `json:"shared_cache_multiplier"`
	Temperature           *float64 `json:"router_temperature"`
	TrackPrefillTokens    *bool    `json:"track_prefill_tokens"`

	// AssumeKVReuse may be false alone: nothing tells which blocks running requests
	// hold in common, so a request adds all of its own.
	AssumeKVReuse *bool `json:"assume_kv_reuse"`

	// OverlapScoreWeight is the older name of PrefillLoadScale; 0 takes the
	// credit away, too. The newer names win.
	OverlapScoreWeight *float64 `json:"overlap_score_weight"`
}

// ErrAssumesReuse refuses an override that asks for what cannot be had.
var ErrAssumesReuse = errors.New("picker: override: assume_kv_reuse true: expected false or none: blocks that running requests share are not known")

// ParseOverride reads the JSON object of an override. Unknown members are
// ignored, null asks for nothing. The error names the member and what was
// expected.
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

// Apply returns p with what the override asks for. The override of a decode
// pick, DecodeOverride, is applied after it: a request cannot ask for what has
// no meaning there (docs/behaviour.md#decode-pick).
func (o *Override) Apply(p Params) Params {
	if w := o.OverlapScoreWeight; w != nil {
		p.PrefillLoadScale = *w
		if *w == 0 {
			p.OverlapScoreCredit = 0
		}
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
