package picker

import (
	"encoding/json"
	"fmt"
	"math"
)

// Override is what one request asks to be weighed differently for itself: the
// RouterConfigOverride of NVIDIA Dynamo, by its names. A nil field asks for
// nothing.
type Override struct {
	OverlapScoreCredit *float64 `json:"overlap_score_credit"`
	PrefillLoadScale   *float64 `json:"prefill_load_scale"`
	Temperature        *float64 `json:"router_temperature"`
	AssumeKVReuse      *bool    `json:"assume_kv_reuse"`
	TrackPrefillTokens *bool    `json:"track_prefill_tokens"`

	// OverlapScoreWeight is the older name of PrefillLoadScale; 0 takes the
	// credit away, too. The newer names win.
	OverlapScoreWeight *float64 `json:"overlap_score_weight"`

	// SharedCacheMultiplier is read and has no effect: no cache shared by all
	// workers is weighed.
	SharedCacheMultiplier *float64 `json:"shared_cache_multiplier"`
}

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
	return o, nil
}

// Apply returns p with what the override asks for. The override of a decode
// pick, DecodeOverride, is applied after it: a request cannot ask for what has
// no meaning there (C15).
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
	set(&p.AssumeKVReuse, o.AssumeKVReuse)
	set(&p.TrackPrefillTokens, o.TrackPrefillTokens)
	return p
}

func set[T any](dst *T, v *T) {
	if v != nil {
		*dst = *v
	}
}
