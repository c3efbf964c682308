package record

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// factOf returns the fact that a key of a worker gives, or 0.
func factOf(key string) worker.Facts {
	switch key {
	case "role":
		return worker.FactRole
	case "engine":
		return worker.FactEngine
	case "models":
		return worker.FactModels
	case "dp_size":
		return worker.FactDPSize
	case "block_size":
		return worker.FactBlockSize
	case "capacity_blocks":
		return worker.FactCapacityBlocks
	case "max_model_len":
		return worker.FactMaxModelLen
	case "eagle":
		return worker.FactEagle
	case "bootstrap":
		return worker.FactBootstrap
	case "kv_events":
		return worker.FactKVEvents
	case "accepts_aggregated":
		return worker.FactAcceptsAggregated
	default:
		return 0
	}
}

// leaveOpen leaves what the file does not give of a worker to be asked of its engine.
func (r *reader) leaveOpen(w *worker.Worker, unnamed bool) {
	w.Fixed = r.given
	if !w.Fixed.Has(worker.FactRole) {
		w.Role = worker.Aggregated
	}
	if unnamed {
		w.ID = idAt(w.Endpoint)
	}
	w.FactsUnknown = !w.Complete()
}

// idAt makes the id of a worker that the file names only by its endpoint. Each replica
// makes the same one.
func idAt(e worker.Endpoint) worker.ID {
	sum := sha256.Sum256([]byte(e.String()))
	return worker.ID(max(1, binary.BigEndian.Uint64(sum[:8])))
}
