package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/test/stack"
	"github.com/seed-60ae5743/baton/test/twolegs"
)

// operation is one of RFC 6902.
type operation struct {
	Op    string `json:"op"`
	From  string `json:"from,omitempty"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// envoyConfig returns the configuration of an Envoy whose plugin has a replica on each of
// these ports of loopback. Requests go to the replicas in turn, by a cluster of their own: in a
// common one, what else Envoy asks the plugin would take turns between two requests.
func envoyConfig(ctx context.Context, path, dir string, ports []int) ([]byte, error) {
	config, err := stack.EnvoyOptions{Path: path, Dir: dir, Params: envoy.Params{PluginSocket: "-", PluginHost: "127.0.0.1", PluginPort: ports[0]}}.Render(ctx)
	if err != nil || len(ports) == 1 {
		return config, err
	}
	var endpoints []any
	for _, port := range ports {
		address := map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": port}}
		endpoints = append(endpoints, map[string]any{"endpoint": map[string]any{"address": address}})
	}
	const (
		clusters = "/static_resources/clusters"
		requests = "extproc_requests"
		mainLeg  = "/static_resources/listeners/1"
		picking  = mainLeg + "/filter_chains/0/filters/0/typed_config/http_filters/1"
	)
	patch, err := json.Marshal([]operation{
		{"test", "", clusters + "/0/name", "extproc"},
		{"replace", "", clusters + "/0/load_assignment/endpoints/0/lb_endpoints", endpoints},
		{"copy", clusters + "/0", clusters + "/1", nil},
		{"replace", "", clusters + "/1/name", requests},
		{"replace", "", clusters + "/1/load_assignment/cluster_name", requests},
		{"test", "", mainLeg + "/name", "main_leg"},
		{"test", "", picking + "/name", "envoy.filters.http.ext_proc"},
		{"replace", "", picking + "/typed_config/grpc_service/envoy_grpc/cluster_name", requests},
	})
	if err != nil {
		return nil, fmt.Errorf("replicas: %w", err)
	}
	return twolegs.Patch(config, patch)
}

// newest returns the newest n of the decisions of some replicas, and how many of them each has
// made.
func newest(lists [][]decision.Record, n int) (all []decision.Record, parts []int) {
	type made struct {
		decision.Record
		by int
	}
	var merged []made
	for by, list := range lists {
		for _, d := range list {
			merged = append(merged, made{d, by})
		}
	}
	slices.SortStableFunc(merged, func(a, b made) int { return b.Time.Compare(a.Time) })
	parts = make([]int, len(lists))
	for _, d := range merged[:min(n, len(merged))] {
		all = append(all, d.Record)
		parts[d.by]++
	}
	return all, parts
}
