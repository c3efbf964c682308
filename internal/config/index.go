package config

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// IndexConfig is about the index, which knows what the workers have cached.
type IndexConfig struct {
	// MaxBytes bounds the index's memory. Default kvindex.DefaultMaxBytes. With more,
	// more of what large pools have cached is known.
	MaxBytes int `yaml:"max_bytes"`
	// Dump is a file that keeps the index's content over a restart. Default: none.
	Dump string `yaml:"dump"`
	// DumpInterval is how often the dump is written. Default 1m; 0: only at the end. With
	// a shorter interval, less has to be replayed after a crash.
	DumpInterval time.Duration `yaml:"dump_interval"`
}

// Tree converts to the index's settings.
func (c *Config) Tree() kvindex.TreeConfig {
	return kvindex.TreeConfig{
		MaxBytes: c.Index.MaxBytes,
		Route:    kvindex.RouteConfig{TTL: c.Routing.RoutedTTL, PredictedTTL: c.Routing.PredictedTTL},
	}
}
