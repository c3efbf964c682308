package config

import (
	"errors"
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/picker"
)

const (
	fallbackNone       = "none"
	fallbackAggregated = "aggregated"
)

// ConditionalConfig says when one worker serves a request, its prompt included, although
// the model has prefill workers; see extproc.Conditional.
type ConditionalConfig struct {
	Enabled bool `yaml:"enabled"` // default false
}

// validateSplit returns the faults of the settings by which one worker serves alone.
func (c *Config) validateSplit() (errs []error) {
	k := &c.Routing
	inSeconds := func(p *PickConfig) bool {
		return p.Cost != costIn[false] && (p.Mode == "" || p.Mode == picker.KV.String())
	}
	if k.Conditional.Enabled && !(inSeconds(&k.Prefill) && inSeconds(&k.Aggregated)) {
		errs = append(errs, errors.New("routing.conditional.enabled: expected mode: kv and cost: seconds of routing.prefill and routing.aggregated, whose costs it compares"))
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
