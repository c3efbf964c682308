package discovery

import "github.com/seed-60ae5743/baton/pkg/worker"

// Ineligible says why w may not be picked for its role although it is known,
// or "" when it may (docs/behaviour.md#eligible): an SGLang prefill worker meets its
// decode worker at a bootstrap address, so without one it can never hand its KV
// over. A prefill endpoint counts as ready only when its facts are known
// (docs/behaviour.md#facts-first).
//
// A transfer domain without a value may still get one, so until then the worker is
// not picked: it is ineligible, and not unfit (docs/behaviour.md#transfer-domain).
//
// Draining is not judged here: that is [worker.Worker.CanServe].
func Ineligible(w *worker.Worker) string {
	if why := Unfit(w); why != "" {
		return why
	}
	switch {
	case w.Role != worker.Prefill || !w.LacksBootstrap():
	case w.Engine == worker.VLLMMooncake:
		return "a vllm-mooncake prefill worker without bootstrap host, port and an engine id for each rank cannot hand over its KV: add bootstrap: {port: PORT, engine_ids: [ID, …]}"
	default:
		return "an sglang prefill worker without bootstrap host and port cannot hand over its KV: add bootstrap: {port: PORT}, that of its --disaggregation-bootstrap-port"
	}
	if why := w.TopologyFault(); why != "" {
		return why
	}
	if w.DPSize == 0 || w.BlockSize == 0 {
		return "dp_size and block_size are not known yet"
	}
	return ""
}

// Unfit says why w can never be picked for its role as it is, or "": no fact
// that is still to come will change that. An ineligible worker that is not unfit
// is one whose facts are not all known.
func Unfit(w *worker.Worker) string {
	if w.Fronted {
		return "it speaks no HTTP: only its own front reaches it"
	}
	return ""
}
