package openai

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestABodysMembersSayItsPath(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages":[]}`:                             "/v1/chat/completions",
		`{"prompt":"x"}`:                              "/v1/completions",
		`{"prompt_embeds":"x"}`:                       "/v1/completions",
		`{"input":"x"}`:                               "/v1/responses",
		`{"system":"be short","messages":[]}`:         "/v1/messages",
		`{"messages":[],"stop_sequences":["x"]}`:      "/v1/messages",
		`{"text":"x","sampling_params":{}}`:           "/generate",
		`{"input_ids":[1]}`:                           "/generate",
		`{"token_ids":[1],"sampling_params":{}}`:      "/inference/v1/generate",
		`{"model":"m"}`:                               "/v1/chat/completions",
		`[`:                                           "/v1/chat/completions",
		`{"me\u0073sages":[{"content":"\"input\""}]}`: "/v1/chat/completions",
	} {
		require.Equal(t, want, PathOf([]byte(body)).String(), body)
	}
}
