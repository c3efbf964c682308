package openai

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

var fuzzSeeds = []string{
	`{}`, `{"model":"m","prompt":"p"}`, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a\\\""},{"type":"image_url"}]}],"tools":[{}]}`,
	`{"text":["a","b"],"sampling_params":{"max_new_tokens":3,"n":2}}`, `{"input_ids":[[1,2],[3]]}`, ` { "model" : "\ud83d\ude00" , "prompt" : [ 1 , 2 ] } `,
	`{"model":"m","prompt":"p","stream":true,"max_tokens":1e3,"bootstrap_room":1}`, "{\"a\":\"\x01\"}", `{"a":[[[[{"b":{}}]]]]}`, `{"a":-0.5E-7,"b":tru}`, `[`,
	`{"text":"x","sampling_params":[{"n":2},{}]}`, `{"model":"m","messages":[1,"a",null,{"role":null,"content":["x",1,{}],"tool_calls":[]}]}`,
}

// depth returns how deep valid JSON nests.
func depth(b []byte) int {
	d, deepest := 0, 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = skipValidString(b, i+1) - 1
		case '{', '[':
			d++
			deepest = max(deepest, d)
		case '}', ']':
			d--
		}
	}
	return deepest
}

func FuzzScan(f *testing.F) {
	for _, s := range fuzzSeeds {
		for p := ChatCompletions; p <= Generate; p++ {
			f.Add(uint8(p), []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, path uint8, body []byte) {
		p := Path(path%3) + 1
		before := bytes.Clone(body)
		var r Request
		err := ScanInjected(p, body, &r)
		require.Equal(t, before, body)
		trimmed := bytes.TrimLeft(body, " \t\r\n")
		valid := json.Valid(body) && trimmed[0] == '{' && depth(body) <= MaxDepth
		var e *Error
		if err != nil {
			require.ErrorAs(t, err, &e)
			require.LessOrEqual(t, e.Offset, len(body))
			require.GreaterOrEqual(t, e.Offset, 0)
			if e.Kind == NotJSON {
				require.False(t, valid, "%q: %v", body, err)
			}
			return
		}
		require.True(t, valid, "%q", body)
		VisitPrompt(body, &r, func(kind PieceKind, piece []byte) {
			if kind == PieceMedia {
				Picture(piece)
			}
		})
		cut, ok := AppendBeforeMedia(nil, body, &r)
		require.True(t, !ok || json.Valid(cut), "%q", cut)
		if r.PromptKind == PromptIDs {
			ids, err := AppendTokenIDs(nil, body, r.Value(r.PromptField))
			if err == nil {
				require.Len(t, ids, r.PromptTokens)
			}
		}
		checkEdits(t, body, &r, []Edit{{Stream, []byte("false")}, {StreamOptions, nil}, {MaxTokens, []byte("1")}, {Model, nil}, {BootstrapRoom, []byte("7")}})
		out := AppendEdited(nil, body, &r, Edit{MaxNewTokens, []byte("1")}, Edit{MinNewTokens, []byte("1")}, Edit{PromptText, nil})
		require.True(t, json.Valid(out), "%q", out)
		out = AppendInjected(nil, body, &r, []byte(`"zz":1`))
		require.True(t, json.Valid(out), "%q", out)
		require.Equal(t, out, InjectInPlace(bytes.Clone(body), &r, []byte(`"zz":1`)))
		require.NoError(t, ScanInjected(p, out, &r))
	})
}

func FuzzScanAnswer(f *testing.F) {
	for _, s := range append(fuzzSeeds, `{"choices":[{"finish_reason":"length"}]}`, `[{"meta_info":{"finish_reason":{"type":"abort"}}}]`, `{"error":{"message":"x"}}`) {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_, err := ScanAnswer(body)
		trimmed := bytes.TrimLeft(body, " \t\r\n")
		valid := json.Valid(body) && (trimmed[0] == '{' || trimmed[0] == '[') && depth(body) <= MaxDepth
		require.Equal(t, valid, err == nil, "%q: %v", body, err)
	})
}

func FuzzAppendError(f *testing.F) {
	f.Add("a\n\"\\\u2028\x00", "p", 400)
	f.Fuzz(func(t *testing.T, message, param string, status int) {
		body := AppendError(nil, status, "", "", message, param)
		require.True(t, json.Valid(body), "%q", body)
		require.NotContains(t, string(body), "\n")
		var got struct {
			Error struct {
				Message string
				Param   *string
			}
		}
		require.NoError(t, json.Unmarshal(body, &got))
		require.Equal(t, string([]rune(message)), got.Error.Message)
	})
}
