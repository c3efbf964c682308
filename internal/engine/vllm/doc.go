// Package vllm says what Baton knows of vLLM with NixlConnector: see package engine. Prefill goes
// first, and decode pulls its KV.
package vllm
