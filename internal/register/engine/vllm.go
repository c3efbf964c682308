package engine

import (
	"context"
	"fmt"
	"strconv"

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
	if f.Models, err = parseModels(body); err != nil {
		return Facts{}, fmt.Errorf("/v1/models: %w", err)
	}
	if ownedByTRT(body) {
		return Facts{}, fmt.Errorf("/v1/models: owned_by %s: not of vLLM, expected --engine trtllm", trtOwner)
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
