package vllm

import (
	"github.com/seed-60ae5743/baton/internal/engine"
	"github.com/seed-60ae5743/baton/internal/engine/aschat"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Engine is what is known of vLLM with NixlConnector.
var Engine = With(engine.Engine{Name: worker.VLLM, HandOff: HandOff, Pages: Pages, FetchesLacking: true, Recognized: true})

// With returns an engine that is vLLM but for its connector.
func With(e engine.Engine) engine.Engine {
	e.Truncates, e.DecodePrefills, e.PrefillServes = true, true, true
	e.TellsAsItWrites, e.NamesResponses = true, true
	e.TellsPictures, e.ChatCaller = true, &caller
	e.AsChat, e.RendersOn = asChat, []openai.Path{openai.Responses, openai.AnthropicMessages}
	e.RanksInMetrics = true
	return e
}

// asChat makes the chat request of a message (entrypoints/anthropic/serving.py
// to_chat_completion_request) or of a response (entrypoints/openai/responses/utils.py
// construct_input_messages), as in 0.32.
func asChat(body []byte, r *openai.Request) ([]byte, bool) {
	if r.Path == openai.AnthropicMessages {
		return aschat.Rules{}.Message(body, r)
	}
	return aschat.Rules{}.Response(body, r)
}
