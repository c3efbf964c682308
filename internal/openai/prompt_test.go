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
		{"a part that is more than its text", ChatCompletions,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a","image_url":{"url":"u"}},{"text":"b","uuid":"x","im\u0061ge_url":null},{"type":"input_audio","text":"c"}]}]}`,
			`user / media:{"type":"text","text":"a","image_url":{"url":"u"}} / media:{"text":"b","uuid":"x","im\u0061ge_url":null} / media:{"type":"input_audio","text":"c"} / |`},
		{"texts by other names, and with more than a text", ChatCompletions,
			`{"model":"m","messages":[{"role":"assistant","content":[{"type":"refusal","refusal":"a"},{"thinking":"b","type":"thinking","closed":true},{"type":null,"text":"c","cache_control":{"type":"ephemeral"}}]}]}`,
			`assistant / a / b / c / |`},
		{"tool calls and their answers", ChatCompletions,
			`{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},{"role":"tool","tool_call_id":"1","content":"7"}]}`,
			`assistant / [{"id":"1"}] / | / tool / 7 / 1 / |`},
		{"what tools have answered, with a picture", AnthropicMessages,
			`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"content":["a",{"type":"text","text":"b"},{"type":"image","source":{"data":"AA"}}],"type":"tool_result"},{"type":"tool_result","content":"c"}]}]}`,
			`user / a / b / media:{"type":"image","source":{"data":"AA"}} / {"type":"tool_result","content":"c"} / |`},
		{"the same of a response", Responses,
			`{"model":"m","input":[{"type":"function_call_output","call_id":"i","output":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"data:,AA"}]},{"output":"b"}]}`,
			`a / media:{"type":"input_image","image_url":"data:,AA"} / i / | / b / |`},
		{"what the engine skips", AnthropicMessages,
			`{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"redacted_thinking","data":"AA"},{"type":"text","text":""},"a"]}]}`,
			`assistant /  / a / |`},
		{"no messages", ChatCompletions, `{"model":"m","messages":[ ]}`, ``},
		{"odd messages", ChatCompletions, `{"model":"m","messages":[1,{},{"content":[]}]}`, `1 / | / | / |`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, strings.Join(pieces(t, tt.path, tt.body), " / "))
		})
	}
}

func TestAPictureIsToldFromOtherMedia(t *testing.T) {
	t.Parallel()
	const none, away, within = "no picture", "elsewhere", "within"
	for part, want := range map[string]string{
		`{"type":"image_url","image_url":{"url":"http://a/b"}}`:                              away,
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}`:                within,
		`{"image_url":"DATA:,AA","uuid":"x"}`:                                                within,
		`{ "type" : null , "im\u0061ge_url" : { "detail":"low", "url" : "file:///a" } }`:     away,
		`{"image_url":{"url":"\u0064ata:,AA"}}`:                                              away,
		`{"image_url":{"url":"data:,AA","url":"http://a"}}`:                                  away,
		`{"image_url":{"url":"data:,AA","url":null}}`:                                        none,
		`{"type":"image_url","image_url":{"url":""}}`:                                        away,
		`{"type":"image_url","image_url":null,"uuid":"x"}`:                                   none,
		`{"type":"image_url"}`:                                                               none,
		`{"type":"text","text":"a","image_url":{"url":"data:,AA"}}`:                          none,
		`{"type":"image_url","image_url":{"url":"data:,AA"},"video_url":{"url":"data:,AA"}}`: none,
		`{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}`:                  none,
		`{"type":"video_url","video_url":{"url":"data:,AA"}}`:                                none,
		`{"type":"image_embeds","image_embeds":"AA"}`:                                        none,
		`7`: none,
	} {
		inside, ok := Picture([]byte(part))
		got := map[bool]string{true: within, false: away}[inside]
		if !ok {
			got = none
		}
		require.Equal(t, want, got, part)
		require.False(t, inside && !ok, part)
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
