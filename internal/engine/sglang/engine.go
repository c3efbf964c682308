package sglang

import (
	"github.com/seed-60ae5743/baton/internal/engine"
	"github.com/seed-60ae5743/baton/internal/engine/aschat"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Engine is what is known of SGLang.
var Engine = engine.Engine{
	Name: worker.SGLang, HandOff: HandOff, Pages: pages,
	ServesAnyModel: true, DefaultModel: "default", AdapterInModel: true,
	HealthComputes: true, // entrypoints/http_server.py health_generate: 503 after 20 s, as in 0.5.23
	FirstClears:    true, NamesResponses: true,
	ChatCaller:  &caller,
	AsChat:      asChat,
	Recognized:  true,
	NoBootstrap: "an sglang prefill worker without bootstrap host and port cannot hand over its KV: add bootstrap: {port: PORT}, that of its --disaggregation-bootstrap-port",
}

// asChat makes the chat request of a response (entrypoints/openai/serving_responses.py
// _construct_input_messages), as in 0.5.23. Messages are not handed over.
func asChat(body []byte, r *openai.Request) ([]byte, bool) {
	if r.Path != openai.Responses {
		return nil, false
	}
	return aschat.Rules{PartsOfAssistant: true}.Response(body, r)
}
