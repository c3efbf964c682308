// Package trtllm says what Baton knows of TensorRT-LLM: see package engine. Prefill goes first,
// and its answer has the prompt's token ids.
package trtllm
