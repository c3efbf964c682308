// Package enginesim simulates the process of one serving engine: a prefill, decode or
// aggregated worker with real HTTP, real KV events over ZMQ, and the engine's own rules
// about which requests must meet. End-to-end tests are measured against it: it enforces
// the rules, so a wrong request fails and is recorded.
//
// # Use
//
// [New] binds every address (port 0 picks one). [Sim.Run] serves until its context ends,
// and returns when all its goroutines have ended. test/cmd/enginesim runs one worker per
// process, so that it can be killed. Tests read [Sim.State] and [Sim.Requests] and break
// the worker with [Sim.SetFault]. [Client] does the same from another process, with
// /sim/state, /sim/requests, /sim/fault, /sim/events (drops event batches), /sim/lie and
// /sim/reset.
//
// # Packages
//
//	core         a worker of any engine: requests and answers, scheduling, the cache of
//	             each rank, KV events, faults, the log. It knows no engine
//	sglang       SGLang, whose halves meet in a room
//	vllm         vLLM, with NixlConnector and with MooncakeConnector
//	trtllm       TensorRT-LLM, context first
//	sidechannel  KV under a lease, which vLLM and TensorRT-LLM have in common
//
// This package gives the core an engine by its name, and has the core's names for its
// users. No engine's package imports another one's. The doc.go of each has its rules, and
// what is inferred or ours.
//
// Pages, answers, streams, errors and KV events of SGLang and vLLM are compared with
// those of real engines (package capture, testdata/captures). TensorRT-LLM is simulated
// as its source reads. The example engine of internal/engine is not simulated.
//
// # Another engine
//
// It is a package beside the others with a function that returns a core.Kind, a case in
// kindOf, and a row in test/archtest.
//
// This package computes nothing and moves no KV. It has no sampling, no logprobs, no
// tools and no tensor parallelism, and does not model the speed of any device.
package enginesim
