package trtllm

import (
	"github.com/seed-60ae5743/baton/internal/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Engine is what is known of TensorRT-LLM.
var Engine = engine.Engine{Name: worker.TensorRTLLM, HandOff: HandOff, Pages: pages, HidesRole: true, HidesBlockSize: true}
