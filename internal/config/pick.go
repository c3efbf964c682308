package config

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// settle copies each setting but the mode and the cost to its parameter, or, if it is not given, the
// parameter to the setting.
func (p *PickConfig) settle(to *picker.Params) {
	settle(&p.OverlapScoreCredit, &to.OverlapScoreCredit)
	settle(&p.PrefillLoadScale, &to.PrefillLoadScale)
	settle(&p.SharedCacheMultiplier, &to.SharedCacheMultiplier)
	settle(&p.FetchCost, &to.FetchCost)
	settle(&p.Temperature, &to.Temperature)
	settle(&p.TrackPrefillTokens, &to.TrackPrefillTokens)
	settle(&p.ActivePrefillTokensThreshold, &to.PrefillTokensThreshold)
	settle(&p.ActiveDecodeBlocksThreshold, &to.DecodeBlocksThreshold)
	settle(&p.ServeOverloaded, &to.ServeOverloaded)
}

func settle[T any](given **T, param *T) {
	if *given == nil {
		*given = new(*param)
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
	p.settle(&d)
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
	p.settle(&out)
	return out, out.Validate()
}
