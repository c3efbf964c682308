package sglang

import (
	"github.com/seed-60ae5743/baton/internal/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Engine is what is known of SGLang.
var Engine = engine.Engine{
	Name: worker.SGLang, HandOff: HandOff, Pages: pages,
	ServesAnyModel: true, DefaultModel: "default", AdapterInModel: true,
	FirstClears: true,
	ChatCaller:  &caller,
	Recognized:  true,
	NoBootstrap: "an sglang prefill worker without bootstrap host and port cannot hand over its KV: add bootstrap: {port: PORT}, that of its --disaggregation-bootstrap-port",
}
