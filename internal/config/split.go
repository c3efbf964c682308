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

// ConditionalConfig says when one worker serves a request, its prompt included, although
// the model has prefill workers; see extproc.Conditional.
type ConditionalConfig struct {
	Enabled          bool    `yaml:"enabled"`            // default false
	DecodeBusyBlocks float64 `yaml:"decode_busy_blocks"` // default 0.8
}

// validateSplit returns the faults of the settings by which one worker serves alone.
func (c *Config) validateSplit() (errs []error) {
	k := &c.Routing
	for _, err := range extproc.Conditional(k.Conditional).Faults() { // a setting that is off must be right, too
		errs = append(errs, fmt.Errorf("routing.%w", err))
	}
	if k.Conditional.Enabled && (k.Prefill.Cost == costIn[false] || k.Aggregated.Cost == costIn[false]) {
		errs = append(errs, errors.New("routing.conditional.enabled: expected cost: seconds of routing.prefill and routing.aggregated, which it compares"))
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
