package discovery

import (
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Ineligible says why w may not be picked for its role although it is known, or returns
// "" (docs/behaviour.md#eligible). An SGLang prefill worker meets decode workers at its
// bootstrap address: without one it can never hand over its KV. A prefill endpoint is
// ready only when its facts are known (docs/behaviour.md#facts-first).
//
// A worker whose transfer domain has no value is ineligible but not unfit: the value
// may still come (docs/behaviour.md#transfer-domain).
//
// Whether w is draining is not checked here, but in [worker.Worker.CanServe].
func Ineligible(w *worker.Worker) string {
	if why := Unfit(w); why != "" {
		return why
	}
	if w.Role == worker.Prefill && w.LacksBootstrap() {
		return engines.Of(w.Engine).NoBootstrap
	}
	if why := w.TopologyFault(); why != "" {
		return why
	}
	if w.DPSize == 0 || w.Role != worker.Aggregated && !w.Complete() {
		return "its engine, models or block size are not known yet"
	}
	return ""
}

// Unfit says why w can never be picked for its role, whatever further facts come, or
// returns "". A worker that is ineligible but not unfit is one whose facts are not all
// known.
func Unfit(w *worker.Worker) string {
	if w.Fronted {
		return "it speaks no HTTP: only its own front reaches it"
	}
	return ""
}
