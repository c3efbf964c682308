package engines

import "github.com/seed-60ae5743/baton/pkg/worker"

// InCard returns the engine of a worker whose card in Dynamo's store names none. meets says that
// the card has an endpoint at which prefill and decode meet: only SGLang's cards have one
// (docs/engines.md).
func InCard(meets bool) worker.Engine {
	if meets {
		return worker.SGLang
	}
	return worker.VLLM
}
