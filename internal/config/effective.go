package config

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/redact"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Effective prints a configuration as a file that reads back as itself, but for passwords that
// stand where none may. The caller sets
// Request.MaxBodiesBytes before: its default follows from the machine's memory, which
// this package does not read.
func (c Config) Effective() (string, error) {
	c.Prefill.Listener, c.Models = c.PrefillListener(), c.filledModels()
	c.Request.MaxBodyBytes = int(min(int64(c.Request.MaxBodyBytes), budget.New(c.Request.MaxBodiesBytes).Large()))
	r := &c.Routing
	r.Prefill, r.Decode, r.Aggregated = r.Prefill.filled(worker.Prefill), r.Decode.filled(worker.Decode), r.Aggregated.filled(worker.Aggregated)
	b, err := yaml.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("config: %w", err)
	}
	return redact.Text(string(b)), nil
}

// PrefillListener is where Envoy takes the legs that the plugin itself begins. The
// default is a socket beside the plugin's own: if the plugin listens on a socket, Envoy
// is on this machine.
func (c *Config) PrefillListener() string {
	if c.Prefill.Listener != "" {
		return c.Prefill.Listener
	}
	if path, ok := strings.CutPrefix(c.Listen, "unix://"); ok {
		return "unix://" + filepath.Join(filepath.Dir(path), "prefill.sock")
	}
	return ""
}
