package config

import (
	"slices"
	"strings"
)

// predictedWeight at 0 did what another key still does.
const predictedWeight = "routing.predicted_weight"

// gone are the keys of 0.1.0 that nobody had a reason to set. What each said is a constant now, or known.
func gone() []string {
	out := []string{
		"discovery.cache_max_age", "discovery.poll", "events.dynamo.nats.subject", "facts.at_once", "gateway.reason_header",
		"health.max_probes", "health.max_share", "health.probe_path", "health.probe_timeout", "index.dump_max_age",
		"index.huge_pages", "index.max_routed_blocks", "leg.instance", "prefill.cluster", "request.timeout_header",
		predictedWeight, "tls.reload", "tokens.bytes_per_token", "tokens.cache_bytes",
	}
	for _, role := range []string{"prefill", "decode", "aggregated"} {
		for _, key := range []string{
			"decode_active_request_weight", "degraded_overlap_weight", "disk_cache_hit_weight", "estimated_overlap_weight",
			"host_cache_hit_weight",
		} {
			out = append(out, "routing."+role+"."+key)
		}
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
	out := "keys of the configuration that have no effect any more: " + strings.Join(c.gone, ", ") + "; remove them"
	if slices.Contains(c.gone, predictedWeight) {
		out += "; what " + predictedWeight + ": 0 did, routing.predicted_ttl: 0s does"
	}
	return out
}
