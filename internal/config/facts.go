package config

import (
	"crypto/tls"
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/internal/facts"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// FactsConfig says how engines are asked for the facts of workers for which discovery
// leaves them open: those of a workers file with
// `facts: true`, and those of a pool.
type FactsConfig struct {
	// Refresh is the time between two questions to a worker. Default 1m.
	Refresh time.Duration `yaml:"refresh"`
	// Timeout bounds one question, with all its pages. Default 5s.
	Timeout time.Duration `yaml:"timeout"`
	// PortOffset is how much higher the port of a decode worker's engine is than that of
	// its endpoint, where a sidecar has the endpoint's port. Default 0.
	PortOffset int `yaml:"port_offset"`
	// HTTPS asks over HTTPS. Default false.
	HTTPS      bool   `yaml:"https"`
	CA         string `yaml:"ca"`          // PEM; verifies the engines; default: the system's roots
	ServerName string `yaml:"server_name"` // the name that certificates must have; default: the address
	// Defaults are for what neither discovery nor the engine says.
	Defaults facts.Defaults `yaml:"defaults"`
}

func defaultFacts() FactsConfig {
	return FactsConfig{Refresh: time.Minute, Timeout: 5 * time.Second, Defaults: facts.Defaults{}.WithDefaults()}
}

// Source converts to the settings of a source that asks. The caller adds the inner source
// and what it needs at run time. CA is read.
func (c *FactsConfig) Source() (facts.Config, error) {
	out := facts.Config{
		Refresh: c.Refresh, Timeout: c.Timeout, PortOffset: c.PortOffset, Defaults: c.Defaults,
	}
	if !c.HTTPS {
		return out, nil
	}
	out.TLS = &tls.Config{ServerName: c.ServerName, MinVersion: tls.VersionTLS12}
	if c.CA == "" {
		return out, nil
	}
	var err error
	out.TLS.RootCAs, err = Roots("facts.ca", c.CA)
	return out, err
}

func (c *FactsConfig) validate() (errs []error) {
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !c.HTTPS && (c.CA != "" || c.ServerName != "") {
		bad("facts.ca and facts.server_name: expected facts.https, too")
	}
	_, err := c.Source()
	errs = append(errs, err)
	if c.PortOffset < -65535 || c.PortOffset > 65535 {
		bad("facts.port_offset %d: expected -65535 to 65535", c.PortOffset)
	}
	d := &c.Defaults
	if d.KVEventsPort == 0 {
		bad("facts.defaults.kv_events_port 0: expected 1 to 65535; kv_events: off reads none")
	}
	for _, w := range []struct{ key, v, expected string }{
		{"engine", d.Engine, "auto, " + worker.EngineNames()}, {"kv_events", d.KVEvents, "auto or off"},
	} {
		if w.v == "" {
			bad("facts.defaults.%s %q: expected %s", w.key, w.v, w.expected)
		}
	}
	return append(errs, keyed("facts.defaults.", d.Validate())...)
}
