package openai

import (
	"encoding/json"
	"slices"
	"strings"
)

// Path is a request path whose bodies this package reads.
type Path uint8

// The paths. The zero value is no path.
const (
	ChatCompletions   Path = iota + 1 // POST /v1/chat/completions
	Completions                       // POST /v1/completions
	Generate                          // POST /generate, SGLang's own
	Responses                         // POST /v1/responses
	AnthropicMessages                 // POST /v1/messages, of Anthropic's API
	TokensIn                          // POST /inference/v1/generate, vLLM's own: token ids in, token ids out
	Other                             // any other; ScanOther reads little of such a body
)

var pathNames = [Other]string{
	ChatCompletions: "/v1/chat/completions", Completions: "/v1/completions", Generate: "/generate",
	Responses: "/v1/responses", AnthropicMessages: "/v1/messages", TokensIn: "/inference/v1/generate",
}

// String returns the path as in a request line, or "invalid" for Other and the zero
// value.
func (p Path) String() string {
	if p == 0 || p >= Other {
		return "invalid"
	}
	return pathNames[p]
}

// ParsePath reads the value of :path, without its query. False means that the path is
// none of those that are read: only an exact match counts.
func ParsePath(s string) (Path, bool) {
	s, _, _ = strings.Cut(s, "?")
	i := slices.Index(pathNames[:], s) // the zero value's name is empty
	return Path(max(i, 0)), i > 0
}

// PathOf guesses the path that a body with such members is for. What fits none is taken for a
// chat.
func PathOf(body []byte) Path {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(body, &members)
	for _, c := range []struct {
		path  Path
		anyOf []string
	}{
		{AnthropicMessages, []string{"system", "stop_sequences"}}, // its other members are a chat's
		{ChatCompletions, []string{"messages"}},
		{Completions, []string{"prompt", "prompt_embeds"}},
		{Responses, []string{"input"}},
		{TokensIn, []string{"token_ids"}},
		{Generate, []string{"text", "input_ids", "input_embeds"}},
	} {
		if slices.ContainsFunc(c.anyOf, func(m string) bool { return members[m] != nil }) {
			return c.path
		}
	}
	return ChatCompletions
}

// samples reports whether the bodies of the path have their limits in sampling_params.
func (p Path) samples() bool { return p == Generate || p == TokensIn }
