package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func (c *Client) vllmFacts(ctx context.Context) (Facts, error) {
	version, err := c.version(ctx)
	if err != nil {
		return Facts{}, err
	}
	body, err := c.get(ctx, "/v1/models")
	if err != nil {
		return Facts{}, err
	}
	f := Facts{Engine: worker.VLLM, Version: version}
	if f.Models, f.Adapters, f.MaxModelLen, err = parseModels(body); err != nil {
		return Facts{}, fmt.Errorf("/v1/models: %w", err)
	}
	if ownedByTRT(body) {
		return Facts{}, fmt.Errorf("/v1/models: owned_by %s: not of vLLM, expected --engine trtllm", trtOwner)
	}
	page, err := c.getIfThere(ctx, "/metrics")
	f.readCacheConfig(page)
	f.Mark.Start, f.Unread.Metrics = startTime(page), err
	f.KV, f.Unread.Events = c.vllmEvents(ctx)
	return f, nil
}

// vllmEvents reads where the engine publishes its KV events. 0.32 has a page for it;
// older versions have not.
func (c *Client) vllmEvents(ctx context.Context) (KVEvents, error) {
	const path = "/kv_event_sources"
	body, err := c.getIfThere(ctx, path)
	if err != nil || body == nil {
		return KVEvents{Untold: true}, err
	}
	kv, err := parseEventSources(body)
	if err != nil {
		return KVEvents{}, fmt.Errorf("%s: %w", path, err)
	}
	return kv, nil
}

// parseEventSources reads the answer of /kv_event_sources, which has a source for each
// rank. It returns rank 0's ports: those of rank r are r higher
// (docs/engines.md#vllm-event-sources).
func parseEventSources(body []byte) (KVEvents, error) {
	var sources map[string]struct {
		Enabled   bool   `json:"enable_kv_cache_events"`
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint"`
		Topic     string `json:"topic"`
	}
	if err := json.Unmarshal(body, &sources); err != nil {
		return KVEvents{}, wrongJSON(err)
	}
	s, ok := sources["0"]
	if !ok || !s.Enabled || s.Publisher != "zmq" {
		return KVEvents{}, nil
	}
	host, port := tcpEndpoint(s.Endpoint)
	if port == 0 {
		return KVEvents{}, nil
	}
	_, replay := tcpEndpoint(s.Replay)
	return KVEvents{KVEvents: worker.KVEvents{Host: bound(host), Port: port, ReplayPort: replay, Topic: s.Topic}}, nil
}

// tcpEndpoint splits a ZMQ endpoint that can be reached over TCP. The port is 0 for all
// others.
func tcpEndpoint(endpoint string) (host string, port uint16) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", 0
	}
	host, text, err := net.SplitHostPort(rest)
	if err != nil {
		return "", 0
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0
	}
	return host, uint16(n)
}

// readCacheConfig reads vllm:cache_config_info, which has its facts in labels, and one
// sample for each data-parallel engine of the process.
func (f *Facts) readCacheConfig(page []byte) {
	engines := map[string]bool{}
	samples(page, func(name string) bool { return name == "vllm:cache_config_info" }, func(s sample) {
		// vLLM writes None for what is not known yet.
		if n, err := strconv.ParseUint(s.label("block_size"), 10, 32); err == nil {
			f.BlockSize = uint32(n)
		}
		if n, err := strconv.ParseUint(s.label("num_gpu_blocks"), 10, 64); err == nil {
			f.CapacityBlocks = n
		}
		if len(engines) < worker.MaxDPSize {
			engines[s.label("engine")] = true
		}
	})
	f.DPSize = uint32(len(engines)) //nolint:gosec // bounded above
}

var vllmGauges = []string{"vllm:num_requests_running", "vllm:num_requests_waiting"}
