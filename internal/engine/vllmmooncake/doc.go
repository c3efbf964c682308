// Package vllmmooncake says what Baton knows of vLLM with MooncakeConnector: see package engine.
// Both halves of a pair begin at once. But for the connector the engine is that of package vllm,
// with which it has no hand-off in common.
package vllmmooncake
