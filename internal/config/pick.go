package config

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// knob pairs one setting of a PickConfig with its field in picker.Params.
type knob struct {
	given any // a pointer to the field of the PickConfig, itself a pointer
	param any // a pointer to the field of the Params
}

// knobs returns the pair of every setting but the mode.
func (p *PickConfig) knobs(to *picker.Params) []knob {
	return []knob{
		{&p.OverlapScoreCredit, &to.OverlapScoreCredit},
		{&p.PrefillLoadScale, &to.PrefillLoadScale},
		{&p.SharedCacheMultiplier, &to.SharedCacheMultiplier},
		{&p.FetchCost, &to.FetchCost},
		{&p.Temperature, &to.Temperature},
		{&p.TrackPrefillTokens, &to.TrackPrefillTokens},
		{&p.ActivePrefillTokensThreshold, &to.PrefillTokensThreshold},
		{&p.ActiveDecodeBlocksThreshold, &to.DecodeBlocksThreshold},
		{&p.ServeOverloaded, &to.ServeOverloaded},
	}
}

// apply copies the setting to the parameter, or, if the setting is not given, the
// parameter to the setting.
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

// costIn are the units of a cost, by [picker.Params.InSeconds].
var costIn = map[bool]string{true: "seconds", false: "blocks"}

// filled returns p with the role's default for each setting that is not given.
func (p PickConfig) filled(role worker.Role) PickConfig {
	d := picker.BlockParamsFor(role)
	if p.Cost == "" {
		p.Cost = costIn[picker.DefaultParamsFor(role).InSeconds]
	}
	for _, k := range p.knobs(&d) {
		k.apply()
	}
	return p
}

// Params converts to the parameters of a pick for the role. The error names every fault.
func (p PickConfig) Params(role worker.Role) (picker.Params, error) {
	out := picker.DefaultParamsFor(role)
	if p.Mode != "" {
		mode, err := picker.ParseMode(p.Mode)
		if err != nil {
			return out, err
		}
		out.Mode = mode
	}
	switch p.Cost {
	case "":
	case costIn[true], costIn[false]:
		out.InSeconds = p.Cost == costIn[true]
	default:
		return out, fmt.Errorf("cost %q: expected %s or %s", p.Cost, costIn[true], costIn[false])
	}
	for _, k := range p.knobs(&out) {
		k.apply()
	}
	return out, out.Validate()
}
