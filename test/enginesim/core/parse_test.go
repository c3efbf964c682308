package core

import (
	"bufio"
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzFieldsAreThoseOfEncodingJSON(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":[{"c":"}\"]"},{}],"d\n":{"e":"\\"},"f":null , "g" : -1.5e3}`))
	f.Add([]byte(` { } `))
	f.Add([]byte(`[1, "x\\\"" ,[],{"a":[]} , true]`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if !json.Valid(b) {
			return
		}
		compact := func(v []byte) string {
			var out bytes.Buffer
			require.NoError(t, json.Compact(&out, v))
			return out.String()
		}
		switch got := map[string]string{}; bytes.TrimSpace(b)[0] {
		case '{':
			require.NoError(t, EachField(b, func(k string, v []byte) error {
				got[k] = compact(v)
				return nil
			}))
			var want map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(b, &want))
			require.Len(t, got, len(want))
			for k, v := range want {
				require.Equal(t, compact(v), got[k])
			}
		case '[':
			var want []json.RawMessage
			require.NoError(t, json.Unmarshal(b, &want))
			i := 0
			require.NoError(t, EachElem(b, func(v []byte) error {
				require.Equal(t, compact(want[i]), compact(v))
				i++
				return nil
			}))
			require.Len(t, want, i)
		default:
			require.Error(t, EachField(b, nil))
			require.Error(t, EachElem(b, nil))
		}
	})
}

func FuzzParseRequestNeverPanics(f *testing.F) {
	f.Add([]byte(`{"prompt":["a",[1,2]],"n":2,"stream_options":{"include_usage":true},"bootstrap_room":[1,2]}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}],"tool_calls":[]}],"tools":[{}]}`))
	f.Add([]byte(`{"text":["a"],"input_ids":[[1]],"sampling_params":{"max_new_tokens":3,"n":1}}`))
	f.Add([]byte(`{"prompt":[],"messages":{},"text":3,"sampling_params":[],"stream_options":4}`))
	f.Add([]byte(`3`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, kind := range []API{APIChat, APICompletion, APIGenerate} {
			q, err := parseRequest(kind, b)
			if err != nil {
				var ae *APIError
				require.ErrorAs(t, err, &ae)
				require.Equal(t, 400, ae.Status)
				continue
			}
			require.NotEmpty(t, q.Prompts)
			for _, p := range q.Prompts {
				require.NotEmpty(t, p)
			}
		}
	})
}

func TestPromptsInEveryForm(t *testing.T) {
	ab := Tokenize("a b")
	for _, tc := range []struct {
		name string
		kind API
		body string
		want [][]uint32
	}{
		{"completion text", APICompletion, `{"prompt":"a b"}`, [][]uint32{ab}},
		{"completion texts", APICompletion, `{"prompt":["a b","a b"]}`, [][]uint32{ab, ab}},
		{"completion ids", APICompletion, `{"prompt": [1, 4294967295] }`, [][]uint32{{1, 1<<32 - 1}}},
		{"completion id lists", APICompletion, `{"prompt":[[1,2],[3]]}`, [][]uint32{{1, 2}, {3}}},
		{"generate text", APIGenerate, `{"text":"a b","prompt":"no"}`, [][]uint32{ab}},
		{"generate ids", APIGenerate, `{"input_ids":[5,6]}`, [][]uint32{{5, 6}}},
		{"chat ids beat messages", APIChat, `{"messages":[{"role":"user","content":"x"}],"input_ids":[5,6]}`, [][]uint32{{5, 6}}},
		{"chat with tools", APIChat, `{"messages":[{"role":"user","content":"x"}],"tools":[{"a":1}]}`, [][]uint32{ChatTokens([]Message{{Role: "tools", Content: `[{"a":1}]`}, {Role: "user", Content: "x"}}, true)}},
		{"keys are matched exactly", APICompletion, `{"Prompt":"no","prompt":"a b"}`, [][]uint32{ab}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q, err := parseRequest(tc.kind, []byte(tc.body))
			require.NoError(t, err)
			require.Equal(t, tc.want, q.Prompts)
		})
	}
}

func FuzzReadZMTP(f *testing.F) {
	f.Add(appendZMTP(nil, []byte("a"), bytes.Repeat([]byte("x"), 300), nil))
	f.Add(pong([]byte("ctx")))
	f.Add([]byte{2, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Add([]byte{0x80, 1, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReader(bytes.NewReader(b))
		m, err := readZMTP(r)
		if err != nil {
			return
		}
		require.NotEmpty(t, m.frames)
		if m.command {
			name, body := cutZMTPCommand(m.frames[0])
			require.LessOrEqual(t, len(name)+len(body), len(m.frames[0]))
			return
		}
		again, err := readZMTP(bufio.NewReader(bytes.NewReader(appendZMTP(nil, m.frames...))))
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}

func TestAFaultHasDefaults(t *testing.T) {
	require.Equal(t, "stop", Fault{Mode: FaultFinish}.withDefaults().Reason)
	require.Equal(t, FormText, Fault{Mode: FaultBadHandoff}.withDefaults().Form)
}
