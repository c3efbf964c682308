package config

import "github.com/seed-60ae5743/baton/pkg/picker"

// knob is one setting of a PickConfig and where picker.Params has it.
type knob struct {
	given any // a pointer to the field of the PickConfig, itself a pointer
	param any // a pointer to the field of the Params
}

// knobs pairs every setting but the mode.
func (p *PickConfig) knobs(to *picker.Params) []knob {
	return []knob{
		{&p.OverlapScoreCredit, &to.OverlapScoreCredit},
		{&p.OverlapScoreCreditDecay, &to.OverlapScoreCreditDecay},
		{&p.PrefillLoadScale, &to.PrefillLoadScale},
		{&p.DecodeActiveRequestWeight, &to.DecodeActiveRequestWeight},
		{&p.HostCacheHitWeight, &to.HostHitWeight},
		{&p.DiskCacheHitWeight, &to.DiskHitWeight},
		{&p.SharedCacheMultiplier, &to.SharedCacheMultiplier},
		{&p.EstimatedOverlapWeight, &to.EstimatedOverlapWeight},
		{&p.DegradedOverlapWeight, &to.DegradedOverlapWeight},
		{&p.FetchCost, &to.FetchCost},
		{&p.Temperature, &to.Temperature},
		{&p.TrackPrefillTokens, &to.TrackPrefillTokens},
		{&p.PrefillTokensPerSecond, &to.PrefillTokensPerSecond},
		{&p.ActivePrefillTokensThreshold, &to.PrefillTokensThreshold},
		{&p.ActiveDecodeBlocksThreshold, &to.DecodeBlocksThreshold},
		{&p.ServeOverloaded, &to.ServeOverloaded},
	}
}

// apply writes what was given to the parameter, and the parameter to what was
// not given.
func (k knob) apply() {
	switch given := k.given.(type) {
	case **float64:
		settle(given, k.param.(*float64))
	case **int64:
		settle(given, k.param.(*int64))
	case **bool:
		settle(given, k.param.(*bool))
	}
}

func settle[T any](given **T, param *T) {
	if *given == nil {
		v := *param
		*given = &v
		return
	}
	*param = **given
}

// filled returns p with everything that was not given at its default.
func (p PickConfig) filled() PickConfig {
	d := picker.DefaultParams()
	for _, k := range p.knobs(&d) {
		k.apply()
	}
	return p
}

// Params returns the parameters of a pick. The error names every fault.
func (p PickConfig) Params() (picker.Params, error) {
	out := picker.DefaultParams()
	if p.Mode != "" {
		mode, err := picker.ParseMode(p.Mode)
		if err != nil {
			return out, err
		}
		out.Mode = mode
	}
	for _, k := range p.knobs(&out) {
		k.apply()
	}
	return out, out.Validate()
}
