package config

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// IndexConfig is the index of what the workers hold.
type IndexConfig struct {
	// MaxBytes bounds its memory. Default kvindex.DefaultMaxBytes. Higher:
	// more of what large pools hold is known.
	MaxBytes int `yaml:"max_bytes"`
	// HugePages asks the system for huge pages. Default true.
	HugePages *bool `yaml:"huge_pages"`
	// Dump is a file that keeps what the index holds over a restart. Default:
	// none.
	Dump string `yaml:"dump"`
	// DumpInterval is how often it is written. Default 1m; 0: at the end only.
	// Shorter leaves less to be replayed after a crash.
	DumpInterval time.Duration `yaml:"dump_interval"`
	// DumpMaxAge is how old what it has of a rank may be, above 0. Default 15m. Longer
	// helps after longer absences, as far as workers' replays reach.
	DumpMaxAge time.Duration `yaml:"dump_max_age"`
	// MaxRoutedBlocks bounds what is remembered of routed prompts, of all ranks
	// together. Default kvindex.DefaultRoutedBlocks.
	MaxRoutedBlocks int `yaml:"max_routed_blocks"`
}

// predictedWeight is 0 where nothing is predicted.
func (c *RoutingConfig) predictedWeight() float64 {
	if c.PredictedTTL == 0 {
		return 0
	}
	return c.PredictedWeight
}

// Tree converts to the index's settings.
func (c *Config) Tree() kvindex.TreeConfig {
	return kvindex.TreeConfig{
		MaxBytes: c.Index.MaxBytes, NoHugePages: !unlessFalse(c.Index.HugePages),
		Route: kvindex.RouteConfig{TTL: c.Routing.RoutedTTL, PredictedTTL: c.Routing.PredictedTTL, MaxBlocks: c.Index.MaxRoutedBlocks},
	}
}
