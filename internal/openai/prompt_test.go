package openai

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pieces renders the prompt's pieces, one a word, ends as "|".
func pieces(t testing.TB, p Path, body string) []string {
	var out []string
	VisitPrompt([]byte(body), mustScan(t, p, body), func(k PieceKind, b []byte) {
		switch k {
		case PieceEnd:
			out = append(out, "|")
		case PieceMedia:
			out = append(out, "media:"+string(b))
		case PieceText:
			out = append(out, string(b))
		}
	})
	return out
}

func TestVisitPrompt(t *testing.T) {
	for _, tt := range []struct {
		name string
		path Path
		body string
		want string
	}{
		{"a text", Completions, `{"model":"m","prompt":"a\nb"}`, `a\nb / |`},
		{"texts", Completions, `{"model":"m","prompt":["a", "b"]}`, `a / | / b / |`},
		{"ids have none", Completions, `{"model":"m","prompt":[1]}`, ``},
		{"messages, in whatever order their keys stand", ChatCompletions,
			`{"messages":[{"content":"hi","role":"system"}, { "role" : "user" , "content" : "x\"y" }],"model":"m"}`,
			`system / hi / | / user / x\"y / |`},
		{"tools come first", ChatCompletions, `{"messages":[{"role":"user","content":"x"}],"model":"m","tools":[{"a":1}]}`,
			`[{"a":1}] / | / user / x / |`},
		{"content parts", ChatCompletions,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}},{"text":"b"}]}]}`,
			`user / a / media:{"type":"image_url","image_url":{"url":"u"}} / b / |`},
		{"tool calls and their answers", ChatCompletions,
			`{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},{"role":"tool","tool_call_id":"1","content":"7"}]}`,
			`assistant / [{"id":"1"}] / | / tool / 7 / 1 / |`},
		{"no messages", ChatCompletions, `{"model":"m","messages":[ ]}`, ``},
		{"odd messages", ChatCompletions, `{"model":"m","messages":[1,{},{"content":[]}]}`, `1 / | / | / |`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, strings.Join(pieces(t, tt.path, tt.body), " / "))
		})
	}
}

func TestALongerConversationBeginsWithTheShorterOnesPieces(t *testing.T) {
	a := pieces(t, ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"one"}],"stream":true}`)
	b := pieces(t, ChatCompletions, `{ "stream":false, "messages":[ {"content":"one","role":"user"},{"role":"assistant","content":"two"},{"role":"user","content":"three"}], "model":"m"}`)
	require.Greater(t, len(b), len(a))
	require.Equal(t, a, b[:len(a)])
}

func TestWhatStandsBeforeAPictureIsAListOfMessagesOfItsOwn(t *testing.T) {
	t.Parallel()
	const picture = `{"type":"image_url","image_url":{"url":"u"}}`
	for name, c := range map[string]struct{ messages, want string }{
		"a message":               {`[ {"role":"system","content":"a"} , {"role":"user","content":[` + picture + `]}]`, `[ {"role":"system","content":"a"}]`},
		"a part of the same":      {`[{"content":[ {"type":"text","text":"b"}, ` + picture + `,{"text":"c"}],"role":"user"},{"role":"user","content":"d"}]`, `[{"content":[ {"type":"text","text":"b"}],"role":"user"}]`},
		"both":                    {`[{"role":"system","content":[{"text":"a"}]},{"role":"user","content":["b",` + picture + `]}]`, `[{"role":"system","content":[{"text":"a"}]},{"role":"user","content":["b"]}]`},
		"nothing":                 {`[{"role":"user","content":[` + picture + `,{"text":"c"}]}]`, ``},
		"no picture":              {`[{"role":"user","content":[{"text":"c"}]},1,{"content":null}]`, ``},
		"the content that counts": {`[{"content":[` + picture + `],"content":["a",` + picture + `]}]`, `[{"content":[` + picture + `],"content":["a"]}]`},
	} {
		t.Run(name, func(t *testing.T) {
			body := `{"model":"m","messages":` + c.messages + `}`
			got, ok := AppendBeforeMedia(nil, []byte(body), mustScan(t, ChatCompletions, body))
			require.Equal(t, c.want != "", ok)
			require.Equal(t, c.want, string(got))
		})
	}
	body := `{"model":"m","prompt":"a"}`
	_, ok := AppendBeforeMedia(nil, []byte(body), mustScan(t, Completions, body))
	require.False(t, ok)
}
