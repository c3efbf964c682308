package vllmmooncake

import (
	"github.com/seed-60ae5743/baton/internal/engine"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Engine is what is known of vLLM with MooncakeConnector.
var Engine = vllm.With(engine.Engine{
	Name: worker.VLLMMooncake, HandOff: HandOff, Pages: pages,
	Bootstrap:   8998, // unless VLLM_MOONCAKE_BOOTSTRAP_PORT sets another
	NoBootstrap: "a vllm-mooncake prefill worker without bootstrap host, port and an engine id for each rank cannot hand over its KV: add bootstrap: {port: PORT, engine_ids: [ID, …]}",
})
