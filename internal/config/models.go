package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
)

// The values of models.NAME.disaggregation.
const (
	disaggregationAuto = "auto"
	disaggregationOff  = "off"
)

// validateModels returns the faults of the settings of single models.
func (c *Config) validateModels() (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		if t := c.Models[name].TTFTTarget; t < 0 {
			errs = append(errs, fmt.Errorf("models.%s.ttft_target %v: expected 0, or a time above it", name, t))
		}
		d := c.Models[name].Disaggregation
		if d != "" && d != disaggregationAuto && d != disaggregationOff {
			errs = append(errs, fmt.Errorf("models.%s.disaggregation %q: expected auto or off", name, d))
		}
	}
	return errs
}

// filledModels returns the models with their defaults filled in.
func (c *Config) filledModels() map[string]ModelConfig {
	out := maps.Clone(c.Models)
	for name, m := range out {
		m.Disaggregation = cmp.Or(m.Disaggregation, disaggregationAuto)
		out[name] = m
	}
	return out
}

// targets are within which time first tokens are wanted, by model.
func (c *Config) targets() map[string]time.Duration {
	out := make(map[string]time.Duration)
	for name, m := range c.Models {
		if m.TTFTTarget > 0 {
			out[name] = m.TTFTTarget
		}
	}
	return out
}

// Policy converts to the rules that say whether and how a model is served.
func (c *Config) Policy() activation.Policy {
	p := activation.Policy{
		Namespace: c.Namespace, NeverSplit: make(map[string]bool),
		Rules: activation.Rules{Enforced: c.EnforceDisagg, Fallback: c.Fallback == fallbackAggregated, Listener: c.PrefillListener() != "", Sidecar: c.Routing.sidecar()},
	}
	for name, m := range c.Models {
		if m.Disaggregation == disaggregationOff {
			p.NeverSplit[name] = true
		}
	}
	return p
}
