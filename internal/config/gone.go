package config

import (
	"slices"
	"strings"
)

// gone are the keys of 0.1.0 that nobody had a reason to set. What each said is a constant now, or known.
func gone() []string {
	out := []string{
		"discovery.cache_max_age", "discovery.poll", "events.dynamo.nats.subject", "facts.at_once", "gateway.reason_header",
		"health.max_probes", "health.probe_path", "health.probe_timeout", "index.max_routed_blocks", "leg.instance",
		"tokens.bytes_per_token", "tokens.cache_bytes",
	}
	for _, role := range []string{"prefill", "decode", "aggregated"} {
		out = append(out, "routing."+role+".degraded_overlap_weight", "routing."+role+".estimated_overlap_weight")
	}
	return out
}

// Gone reports whether an earlier version had the key: it is passed over, whatever its value.
func (*Config) Gone(key string) bool { return slices.Contains(gone(), key) }

// GoneWarning names the keys that the file has and that have no effect any more; "": there are none.
func (c *Config) GoneWarning() string {
	if len(c.gone) == 0 {
		return ""
	}
	return "keys of the configuration that have no effect any more: " + strings.Join(c.gone, ", ") + "; remove them"
}
