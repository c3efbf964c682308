package config

import (
	"errors"
	"fmt"

	"github.com/seed-60ae5743/baton/internal/extproc"
)

const (
	fallbackNone       = "none"
	fallbackAggregated = "aggregated"
)

// The policies of conditional disaggregation.
const (
	policyCost      = "cost"
	policyISL       = "isl"
	policyLoad      = "load"
	policyISLOrLoad = "isl_or_load"
)

// ConditionalConfig says when one worker serves a request, its prompt included, although
// the model has prefill workers; see extproc.Conditional.
type ConditionalConfig struct {
	Enabled bool `yaml:"enabled"` // default false
	// Policy says for which requests. cost: those that one worker serves at a lower cost in seconds than
	// prefill and the hand-off have; isl: those of which little is left to prefill; load: all
	// while prefill is busy; isl_or_load: both. Default cost.
	Policy            string  `yaml:"policy"`
	ISLTokens         int64   `yaml:"isl_tokens"`          // default 2048
	ISLRatio          float64 `yaml:"isl_ratio"`           // default 0.7
	PrefillBusyTokens int64   `yaml:"prefill_busy_tokens"` // default 16384
	DecodeBusyBlocks  float64 `yaml:"decode_busy_blocks"`  // default 0.8
}

func defaultConditional() ConditionalConfig {
	return ConditionalConfig{Policy: policyCost, ISLTokens: 2048, ISLRatio: 0.7, PrefillBusyTokens: 16384, DecodeBusyBlocks: 0.8}
}

// conditional converts to the server's settings.
func (c *ConditionalConfig) conditional() extproc.Conditional {
	return extproc.Conditional{
		ByCost:    c.Enabled && c.Policy == policyCost,
		ByISL:     c.Enabled && (c.Policy == policyISL || c.Policy == policyISLOrLoad),
		ByLoad:    c.Enabled && (c.Policy == policyLoad || c.Policy == policyISLOrLoad),
		ISLTokens: c.ISLTokens, ISLRatio: c.ISLRatio, PrefillBusyTokens: c.PrefillBusyTokens, DecodeBusyBlocks: c.DecodeBusyBlocks,
	}
}

// validateSplit returns the faults of the settings by which one worker serves alone.
func (c *Config) validateSplit() (errs []error) {
	switch k := &c.Routing.Conditional; k.Policy {
	case policyCost, policyISL, policyLoad, policyISLOrLoad:
		both := *k
		both.Enabled, both.Policy = true, policyISLOrLoad // settings that are off must be right, too
		for _, err := range both.conditional().Faults() {
			errs = append(errs, fmt.Errorf("routing.%w", err))
		}
	default:
		errs = append(errs, fmt.Errorf("routing.conditional.policy %q: expected cost, isl, load or isl_or_load", k.Policy))
	}
	if k := &c.Routing; k.Conditional.Enabled && k.Conditional.Policy == policyCost && (k.Prefill.Cost == costIn[false] || k.Aggregated.Cost == costIn[false]) {
		errs = append(errs, errors.New("routing.conditional.policy cost: expected cost: seconds of routing.prefill and routing.aggregated, which it compares"))
	}
	switch {
	case c.Fallback != fallbackNone && c.Fallback != fallbackAggregated:
		errs = append(errs, fmt.Errorf("fallback %q: expected none or aggregated", c.Fallback))
	case c.Fallback == fallbackAggregated && c.EnforceDisagg:
		errs = append(errs, fmt.Errorf("fallback %q: expected none with enforce_disagg", c.Fallback))
	case c.Routing.Conditional.Enabled && c.EnforceDisagg:
		errs = append(errs, fmt.Errorf("routing.conditional.enabled: expected it off with enforce_disagg"))
	}
	return errs
}
