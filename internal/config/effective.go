package config

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/seed-60ae5743/baton/internal/budget"
)

// Effective prints a configuration as a file that reads back as itself. The bytes
// that bodies may take have to be set: without a key they follow from the machine's memory,
// which this package does not read.
func (c Config) Effective() (string, error) {
	c.Prefill.Listener, c.Models = c.prefillListener(), c.filledModels()
	c.Request.MaxBodyBytes = int(min(int64(c.Request.MaxBodyBytes), budget.New(c.Request.MaxBodiesBytes).Large()))
	for _, p := range []*PickConfig{&c.Routing.Prefill, &c.Routing.Decode, &c.Routing.Aggregated} {
		*p = p.filled()
	}
	b, err := yaml.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("config: %w", err)
	}
	return string(b), nil
}

// prefillListener is where Envoy takes our own legs: unless it is said, beside
// the plugin's own socket, since then Envoy is on this machine.
func (c *Config) prefillListener() string {
	if c.Prefill.Listener != "" {
		return c.Prefill.Listener
	}
	if path, ok := strings.CutPrefix(c.Listen, "unix://"); ok {
		return "unix://" + filepath.Join(filepath.Dir(path), "prefill.sock")
	}
	return ""
}
