package worker

import "slices"

// NoModel is the model of the pool of workers whose models nobody knows yet
// ([Worker.FactsUnknown]). No request can name it.
const NoModel = ""

// Facts is a set of the facts that a worker may be given or may be asked for.
type Facts uint16

// The facts. Each is named for the field of [Worker] that holds it.
const (
	FactRole Facts = 1 << iota
	FactEngine
	FactModels
	FactDPSize
	FactBlockSize
	FactCapacityBlocks
	FactMaxModelLen
	FactEagle
	FactBootstrap
	FactKVEvents
	FactAcceptsAggregated
)

// Has reports whether all facts of o are in f.
func (f Facts) Has(o Facts) bool { return f&o == o }

// Complete reports whether Engine, Models and BlockSize are known: without them a prompt
// cannot be cut into blocks, nor KV be handed over.
func (w *Worker) Complete() bool {
	return w.Engine != "" && len(w.Models) > 0 && w.BlockSize > 0
}

// Answers reports whether the worker may be sent requests for the model: the model is one
// of its models, or its models are not known.
func (w *Worker) Answers(model string) bool {
	return len(w.Models) == 0 || slices.Contains(w.Models, model)
}
