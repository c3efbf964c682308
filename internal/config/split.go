package config

import (
	"fmt"

	"github.com/seed-60ae5743/baton/internal/extproc"
)

const (
	fallbackNone       = "none"
	fallbackAggregated = "aggregated"
)

// The policies of conditional disaggregation.
const (
	policyISL       = "isl"
	policyLoad      = "load"
	policyISLOrLoad = "isl_or_load"
)

// ConditionalConfig says when one worker serves a request, its prompt included, although
// the model has prefill workers; see extproc.Conditional.
type ConditionalConfig struct {
	Enabled bool `yaml:"enabled"` // default false
	// Policy says for which requests. isl: those of which little is left to prefill;
	// load: all while prefill is busy; isl_or_load: both. Default isl.
	Policy            string  `yaml:"policy"`
	ISLTokens         int64   `yaml:"isl_tokens"`          // default 2048
	ISLRatio          float64 `yaml:"isl_ratio"`           // default 0.7
	PrefillBusyTokens int64   `yaml:"prefill_busy_tokens"` // default 16384
	DecodeBusyBlocks  float64 `yaml:"decode_busy_blocks"`  // default 0.8
}

func defaultConditional() ConditionalConfig {
	return ConditionalConfig{Policy: policyISL, ISLTokens: 2048, ISLRatio: 0.7, PrefillBusyTokens: 16384, DecodeBusyBlocks: 0.8}
}

// conditional converts to the server's settings.
func (c *ConditionalConfig) conditional() extproc.Conditional {
	return extproc.Conditional{
		ByISL:     c.Enabled && c.Policy != policyLoad,
		ByLoad:    c.Enabled && c.Policy != policyISL,
		ISLTokens: c.ISLTokens, ISLRatio: c.ISLRatio, PrefillBusyTokens: c.PrefillBusyTokens, DecodeBusyBlocks: c.DecodeBusyBlocks,
	}
}

// validateSplit returns the faults of the settings by which one worker serves alone.
func (c *Config) validateSplit() (errs []error) {
	switch k := &c.Routing.Conditional; k.Policy {
	case policyISL, policyLoad, policyISLOrLoad:
		both := *k
		both.Enabled, both.Policy = true, policyISLOrLoad // settings that are off must be right, too
		for _, err := range both.conditional().Faults() {
			errs = append(errs, fmt.Errorf("routing.%w", err))
		}
	default:
		errs = append(errs, fmt.Errorf("routing.conditional.policy %q: expected isl, load or isl_or_load", k.Policy))
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
