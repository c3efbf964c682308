package enginesim

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestTokenize(t *testing.T) {
	require.Empty(t, Tokenize(""))
	require.Len(t, Tokenize("Hello, big world!"), 5)
	require.Equal(t, Tokenize("same text"), Tokenize("same text"))
	require.NotEqual(t, Tokenize("a b"), Tokenize("b a"))
	require.Equal(t, slices.Concat(Tokenize("one two."), Tokenize(" three")), Tokenize("one two. three"))
	require.Len(t, Tokenize(strings.Repeat("x", 65)), 3, "long words are cut")
}

func TestTokenizeEndpoint(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, MaxModelLen: 99})
	type answer struct {
		Tokens      json.RawMessage
		Count       json.RawMessage
		MaxModelLen int `json:"max_model_len"`
	}
	chat := []Message{{Role: "system", Content: "be kind"}, {Role: "user", Content: "hi \"you\""}}
	for _, tc := range []struct {
		name, body string
		want       any
		count      string
	}{
		{"a string", `{"prompt":"a b"}`, Tokenize("a b"), "2"},
		{"a list", `{"prompt":["a b","c"]}`, [][]uint32{Tokenize("a b"), Tokenize("c")}, "[2,1]"},
		{
			"messages, as the chat endpoint reads them",
			`{"messages":[{"role":"system","content":"be kind"},{"role":"user","content":[{"type":"text","text":"hi \"you\""}]}]}`,
			ChatTokens(chat, true), "15",
		},
		{"messages alone", `{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false}`, ChatTokens([]Message{{Role: "user", Content: "x"}}, false), "4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, path := range []string{"/tokenize", "/v1/tokenize"} {
				r := post(t.Context(), s.URL()+path, tc.body)
				require.Equal(t, 200, r.status, r.body)
				var a answer
				require.NoError(t, json.Unmarshal([]byte(r.body), &a))
				want, err := json.Marshal(tc.want)
				require.NoError(t, err)
				require.JSONEq(t, string(want), string(a.Tokens))
				require.Equal(t, tc.count, string(a.Count))
				require.Equal(t, 99, a.MaxModelLen)
			}
		})
	}
	for _, bad := range []string{`{}`, `{"prompt":"a","messages":[]}`, `{"prompt":5}`, `{"messages":[]}`, `{"messages":[3]}`, `nope`} {
		require.Equal(t, 400, post(t.Context(), s.URL()+"/tokenize", bad).status, bad)
	}
}
