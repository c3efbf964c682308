package config

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/whatif"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// RecordConfig says whether decisions are recorded in files, for `extproc replay`.
type RecordConfig struct {
	// Dir is the folder of the files. Default: none, and nothing is recorded.
	Dir string `yaml:"dir"`
	// MaxBytes bounds all files together: the oldest go first. Default 1 GiB.
	MaxBytes int64 `yaml:"max_bytes"`
}

// ShadowConfig is a second policy, which decides beside the first one in simulations of the latest requests, and
// is never acted on.
type ShadowConfig struct {
	Routing *ShadowRouting `yaml:"routing"` // default: none
}

// ShadowRouting is how the second policy picks. Roles that are not given pick as those of routing do.
type ShadowRouting struct {
	Prefill    *PickConfig `yaml:"prefill"`
	Decode     *PickConfig `yaml:"decode"`
	Aggregated *PickConfig `yaml:"aggregated"`
}

// fileBytes bounds one file of records.
const fileBytes = 64 << 20

func (c *Config) validateRecord() (errs []error) {
	if c.Record.MaxBytes < 2*fileBytes {
		errs = append(errs, fmt.Errorf("record.max_bytes %d: expected at least two files of %d bytes", c.Record.MaxBytes, fileBytes))
	}
	if c.Shadow.Routing != nil {
		errs = append(errs, validatePicks("shadow.routing.", c.ShadowRouting())...)
	}
	return errs
}

// Store returns the folder of the records; nil: there is none.
func (c *RecordConfig) Store() record.Store {
	if c.Dir == "" {
		return nil
	}
	return &record.Dir{Path: c.Dir, MaxBytes: c.MaxBytes, FileBytes: fileBytes}
}

// ShadowRouting returns the routing of the second policy, complete; without one, the first policy's.
func (c *Config) ShadowRouting() RoutingConfig {
	out := c.Routing
	if s := c.Shadow.Routing; s != nil {
		out.Prefill = *cmp.Or(s.Prefill, &out.Prefill)
		out.Decode = *cmp.Or(s.Decode, &out.Decode)
		out.Aggregated = *cmp.Or(s.Aggregated, &out.Aggregated)
	}
	return out
}

// Simulated returns how a simulation picks as a plugin with this routing would.
func (c *Config) Simulated(r RoutingConfig) (out whatif.Config, err error) {
	var errs [3]error
	out.Prefill, errs[0] = r.Prefill.Params(worker.Prefill)
	out.Decode, errs[1] = r.Decode.Params(worker.Decode)
	out.Whole, errs[2] = r.Aggregated.Params(worker.Aggregated)
	out.Predicted = r.PredictedTTL > 0
	out.RoutedTTL, out.PredictedTTL, out.MostQueued = r.RoutedTTL, r.PredictedTTL, c.Prefill.MaxQueuedISLTokens
	out.ReportEvery = c.Engines.ReportInterval
	return out, errors.Join(errs[:]...)
}

func validatePicks(prefix string, c RoutingConfig) (errs []error) {
	for _, role := range []struct {
		role worker.Role
		pick PickConfig
	}{{worker.Prefill, c.Prefill}, {worker.Decode, c.Decode}, {worker.Aggregated, c.Aggregated}} {
		p, err := role.pick.Params(role.role)
		if err == nil {
			err = p.ValidateFor(role.role)
		}
		errs = append(errs, keyed(prefix+role.role.String()+".", err)...)
	}
	return errs
}
