package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/goccy/go-yaml"
)

// alone returns a shipped configuration without the plugin: the same
// listeners, hops, limits and mirror, no ext_proc filter, and fixed workers. It
// is derived, not written, so that the baseline cannot drift from what is
// shipped; what it does not find where it must be is an error.
func alone(shipped []byte, decode, prefill netip.AddrPort) ([]byte, error) {
	var root any
	if err := yaml.Unmarshal(shipped, &root); err != nil {
		return nil, fmt.Errorf("alone: read the shipped configuration: %w", err)
	}
	filters, mirrors, clusters := 0, 0, 0
	walk(root, func(m map[string]any) {
		if list, ok := m["http_filters"].([]any); ok {
			kept := list[:0]
			for _, f := range list {
				if named(f) == "envoy.filters.http.ext_proc" {
					filters++
					continue
				}
				kept = append(kept, f)
			}
			m["http_filters"] = kept
		}
		if m["cluster_header"] == "x-prefill-cluster" {
			delete(m, "cluster_header")
			m["cluster"] = "prefill_leg"
			mirrors++
		}
		delete(m, "access_log") // it reports to the plugin
		if list, ok := m["clusters"].([]any); ok {
			m["clusters"], clusters = fixed(list, map[string]netip.AddrPort{"decode": decode, "prefill": prefill})
		}
	})
	if filters != 2 || mirrors != 1 || clusters != 2 {
		return nil, fmt.Errorf("alone: expected 2 ext_proc filters, 1 mirror and 2 worker clusters in the shipped configuration, found %d, %d and %d",
			filters, mirrors, clusters)
	}
	out, err := json.Marshal(root) // which is YAML, too
	if err != nil {
		return nil, errors.Join(errors.New("alone: write the configuration"), err)
	}
	return out, nil
}

// fixed returns the clusters without the plugin's, those of workers with a
// fixed address, and how many were fixed.
func fixed(list []any, workers map[string]netip.AddrPort) ([]any, int) {
	var kept []any
	n := 0
	for _, c := range list {
		name := named(c)
		if name == "extproc" {
			continue
		}
		if at, ok := workers[name]; ok {
			m := c.(map[string]any)
			delete(m, "original_dst_lb_config")
			delete(m, "lb_policy")
			m["type"] = "STATIC"
			m["load_assignment"] = map[string]any{
				"cluster_name": name,
				"endpoints": []any{map[string]any{"lb_endpoints": []any{map[string]any{"endpoint": map[string]any{
					"address": map[string]any{"socket_address": map[string]any{"address": at.Addr().String(), "port_value": at.Port()}},
				}}}}},
			}
			n++
		}
		kept = append(kept, c)
	}
	return kept, n
}

func named(v any) string {
	m, _ := v.(map[string]any)
	s, _ := m["name"].(string)
	return s
}

// walk visits every map of a tree, parents first.
func walk(v any, visit func(map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		visit(v)
		for _, c := range v {
			walk(c, visit)
		}
	case []any:
		for _, c := range v {
			walk(c, visit)
		}
	}
}
