package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func (c *Client) vllmFacts(ctx context.Context) (Facts, error) {
	body, err := c.get(ctx, "/version")
	if err != nil {
		return Facts{}, err
	}
	var v struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(body, &v); err != nil || v.Version == "" {
		return Facts{}, errors.New(`/version: expected a JSON object with "version"`)
	}
	if body, err = c.get(ctx, "/v1/models"); err != nil {
		return Facts{}, err
	}
	f := Facts{Engine: worker.VLLM, Version: v.Version}
	if f.Models, err = parseModels(body); err != nil {
		return Facts{}, fmt.Errorf("/v1/models: %w", err)
	}
	page, err := c.getIfThere(ctx, "/metrics")
	f.readCacheConfig(page)
	f.Mark.Start, f.Unread.Metrics = startTime(page), err
	return f, nil
}

// readCacheConfig reads vllm:cache_config_info, which carries its facts in
// labels and has one sample for each data-parallel engine of the process.
func (f *Facts) readCacheConfig(page []byte) {
	engines := map[string]bool{}
	samples(page, func(name string) bool { return name == "vllm:cache_config_info" }, func(s sample) {
		// What is not known yet is written as None.
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
