package vllm

import (
	"github.com/seed-60ae5743/baton/internal/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Engine is what is known of vLLM with NixlConnector.
var Engine = With(engine.Engine{Name: worker.VLLM, HandOff: HandOff, Pages: Pages, FetchesLacking: true, Recognized: true})

// With returns an engine that is vLLM but for its connector.
func With(e engine.Engine) engine.Engine {
	e.Truncates, e.DecodePrefills = true, true
	e.TellsAsItWrites = true
	e.TellsPictures, e.ChatCaller = true, &caller
	e.RanksInMetrics = true
	return e
}
