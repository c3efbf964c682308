package openai

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func mustScan(t testing.TB, p Path, body string) *Request {
	t.Helper()
	var r Request
	require.NoError(t, Scan(p, []byte(body), &r), body)
	return &r
}

func TestParsePath(t *testing.T) {
	for in, want := range map[string]Path{
		"/v1/chat/completions":     ChatCompletions,
		"/v1/completions?a=b?c":    Completions,
		"/generate?":               Generate,
		"/v1/chat/completions/":    0,
		"/V1/completions":          0,
		"":                         0,
		"/generate/../v1/messages": 0,
	} {
		got, ok := ParsePath(in)
		require.Equal(t, want, got, in)
		require.Equal(t, want != 0, ok, in)
		if ok {
			require.True(t, strings.HasPrefix(in, got.String()))
		}
	}
}

func TestEveryFieldIsFoundByItsName(t *testing.T) {
	for f := NoField + 1; f < MaxNewTokens; f++ {
		require.NotEmpty(t, f.String())
		require.Equal(t, f, lookup([]byte(f.String())), f.String())
		require.LessOrEqual(t, len(f.String()), maxKeyLen, f.String())
	}
	require.Equal(t, NoField, lookup([]byte("Model")))
	require.Equal(t, NoField, lookup([]byte(MaxNewTokens.String())))
	require.Equal(t, NoField, lookup([]byte(MinNewTokens.String())))
}

func TestScanReadsWhatRoutingNeeds(t *testing.T) {
	tests := []struct {
		name string
		path Path
		body string
		want Request
	}{
		{"a chat request", ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":7}`,
			Request{Model: []byte("m"), Stream: true, N: 1, MaxTokens: 7, PromptKind: PromptMessages, PromptField: Messages, Prompts: 1}},
		{"white space everywhere", ChatCompletions, " \n{ \"model\" : \"m\" ,\t\"messages\" : [ ] , \"n\" : 3 }\r\n",
			Request{Model: []byte("m"), N: 3, MaxTokens: -1, PromptKind: PromptMessages, PromptField: Messages, Prompts: 1}},
		{"max_completion_tokens wins", ChatCompletions, `{"model":"m","max_completion_tokens":5,"messages":[],"max_tokens":9}`,
			Request{Model: []byte("m"), N: 1, MaxTokens: 5, PromptKind: PromptMessages, PromptField: Messages, Prompts: 1}},
		{"max_completion_tokens is none of a completion's", Completions, `{"model":"m","max_completion_tokens":1,"prompt":"x","max_tokens":9}`,
			Request{Model: []byte("m"), N: 1, MaxTokens: 9, PromptKind: PromptString, PromptField: PromptText, Prompts: 1}},
		{"null is as good as absent", ChatCompletions, `{"model":"m","messages":[],"n":null,"stream":null,"max_tokens":null,"cache_salt":null,"input_ids":null}`,
			Request{Model: []byte("m"), N: 1, MaxTokens: -1, PromptKind: PromptMessages, PromptField: Messages, Prompts: 1}},
		{"escapes are read", Completions, `{"\u006dodel":"a\u00e9\ud83d\ude00\ud800\n/\/","prompt":"x","cache_salt":"s\"","lora_path":["a"],"extra_key":"k"}`,
			Request{Model: []byte("aé😀\ufffd\n//"), N: 1, MaxTokens: -1, CacheSalt: []byte(`s"`), LoRA: []byte(`["a"]`), ExtraKey: []byte("k"),
				PromptKind: PromptString, PromptField: PromptText, Prompts: 1}},
		{"a list of texts", Completions, `{"model":"m","prompt":[ "a" , "b]\"," ,"c"],"n":2}`,
			Request{Model: []byte("m"), N: 2, MaxTokens: -1, PromptKind: PromptStrings, PromptField: PromptText, Prompts: 3}},
		{"token ids", Completions, `{"model":"m","prompt":[ 1, 2 ,30000,0 ]}`,
			Request{Model: []byte("m"), N: 1, MaxTokens: -1, PromptKind: PromptIDs, PromptField: PromptText, Prompts: 1, PromptTokens: 4}},
		{"lists of token ids", Completions, `{"model":"m","prompt":[[1,2],[3]]}`,
			Request{Model: []byte("m"), N: 1, MaxTokens: -1, PromptKind: PromptIDLists, PromptField: PromptText, Prompts: 2, PromptTokens: 3}},
		{"chat with ids", ChatCompletions, `{"model":"m","messages":[],"input_ids":[1,2]}`,
			Request{Model: []byte("m"), N: 1, MaxTokens: -1, PromptKind: PromptIDs, PromptField: InputIDs, Prompts: 1, PromptTokens: 2}},
		{"the only model need not be named", ChatCompletions, `{"model":null,"messages":[]}`,
			Request{N: 1, MaxTokens: -1, PromptKind: PromptMessages, PromptField: Messages, Prompts: 1}},
		{"nor in a completion", Completions, `{"prompt":"x","model":""}`,
			Request{Model: []byte{}, N: 1, MaxTokens: -1, PromptKind: PromptString, PromptField: PromptText, Prompts: 1}},
		{"a byte order mark is passed over", Completions, "\ufeff {\"prompt\":\"x\"}",
			Request{N: 1, MaxTokens: -1, PromptKind: PromptString, PromptField: PromptText, Prompts: 1}},
		{"numbers are read as pydantic reads them", Completions, `{"prompt":"x","n":"2","max_tokens":4.0,"stream":"Yes"}`,
			Request{N: 2, MaxTokens: 4, Stream: true, PromptKind: PromptString, PromptField: PromptText, Prompts: 1}},
		{"so are truth values", Completions, `{"prompt":"x","n":true,"max_tokens":" 1e2 ","stream":1}`,
			Request{N: 1, MaxTokens: 100, Stream: true, PromptKind: PromptString, PromptField: PromptText, Prompts: 1}},
		{"and those that are false", Completions, `{"prompt":"x","max_tokens":false,"stream":"0.0"}`,
			Request{N: 1, MaxTokens: 0, PromptKind: PromptString, PromptField: PromptText, Prompts: 1}},
		{"generate needs no model", Generate, `{"text":"hello","sampling_params":{"max_new_tokens":4,"n":2}}`,
			Request{N: 2, MaxTokens: 4, PromptKind: PromptString, PromptField: Text, Prompts: 1}},
		{"generate prefers ids to a list of texts", Generate, `{"text":["a","b","c"],"input_ids":[[1],[2]],"sampling_params":[{"max_new_tokens":4},{"max_new_tokens":6}]}`,
			Request{N: 1, MaxTokens: 6, PromptKind: PromptIDLists, PromptField: InputIDs, Prompts: 2, PromptTokens: 2}},
		{"the same the other way round", Generate, `{"input_ids":[5],"text":["a","b","c"]}`,
			Request{N: 1, MaxTokens: -1, PromptKind: PromptIDs, PromptField: InputIDs, Prompts: 1, PromptTokens: 1}},
		{"generate with embeddings", Generate, `{"input_embeds":[[0.5]],"sampling_params":null}`,
			Request{N: 1, MaxTokens: -1, PromptKind: PromptNone, PromptField: InputEmbeds, Prompts: 1}},
		{"router fields within other values are the user's text", Completions,
			`{"model":"m","prompt":"\"bootstrap_room\":1","metadata":{"bootstrap_room":1,"model":"x","model":"y"}}`,
			Request{Model: []byte("m"), N: 1, MaxTokens: -1, PromptKind: PromptString, PromptField: PromptText, Prompts: 1}},
	}
	var r Request // one for all: nothing may stay from the case before
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoError(t, Scan(tt.path, []byte(tt.body), &r))
			got := Request{Model: r.Model, Stream: r.Stream, N: r.N, MaxTokens: r.MaxTokens, CacheSalt: r.CacheSalt,
				ExtraKey: r.ExtraKey, LoRA: r.LoRA,
				PromptKind: r.PromptKind, PromptField: r.PromptField, Prompts: r.Prompts, PromptTokens: r.PromptTokens}
			require.Equal(t, tt.want, got)
			require.Equal(t, tt.path, r.Path)
			require.Equal(t, tt.want.N*tt.want.Prompts, r.Parallel())
			require.Equal(t, byte('}'), tt.body[r.End()])
		})
	}
}

func TestScanNotesWhereFieldsStand(t *testing.T) {
	body := []byte(`{ "x":1, "model" : "m", "mess\u0061ges":[{}] , "tools": [1, {"a":"]"}]}`)
	var r Request
	require.NoError(t, Scan(ChatCompletions, body, &r))
	require.Equal(t, `"m"`, string(r.Value(Model).Of(body)))
	require.Equal(t, `"model"`, string(r.members[Model].key.Of(body)))
	require.Equal(t, `"mess\u0061ges"`, string(r.members[Messages].key.Of(body)))
	require.Equal(t, `[{}]`, string(r.Value(Messages).Of(body)))
	require.Equal(t, `[1, {"a":"]"}]`, string(r.Value(Tools).Of(body)))
	require.True(t, r.Has(Tools))
	require.False(t, r.Has(Stream))
	require.Equal(t, Span{}, r.Value(Stream))
}

func TestScanRefuses(t *testing.T) {
	deep := func(n int) string {
		return `{"model":"m","prompt":"p","x":` + strings.Repeat(`[`, n) + strings.Repeat(`]`, n) + `}`
	}
	chat := func(s string) string { return `{"model":"m","messages":[],` + s + `}` }
	tests := []struct {
		name  string
		path  Path
		body  string
		kind  Kind
		field string
	}{
		{"nothing", ChatCompletions, ``, NotJSON, ""},
		{"an array", ChatCompletions, `[]`, NotJSON, ""},
		{"garbage behind", ChatCompletions, chat(`"a":1`) + `x`, NotJSON, ""},
		{"a second object behind", ChatCompletions, chat(`"a":1`) + `{}`, NotJSON, ""},
		{"a comma too many", ChatCompletions, chat(`"a":1,`), NotJSON, ""},
		{"a leading comma", ChatCompletions, `{,"model":"m"}`, NotJSON, ""},
		{"no comma", ChatCompletions, chat(`"a":1 "b":2`), NotJSON, ""},
		{"no colon", ChatCompletions, chat(`"a" 1`), NotJSON, ""},
		{"a key without quotes", ChatCompletions, chat(`a:1`), NotJSON, ""},
		{"a control character in a text", ChatCompletions, chat("\"a\":\"x\ny\""), NotJSON, ""},
		{"a control character in a key", ChatCompletions, chat("\"a\x00\":1"), NotJSON, ""},
		{"a broken escape", ChatCompletions, chat(`"a":"\x"`), NotJSON, ""},
		{"a broken unicode escape", ChatCompletions, chat(`"a":"\u00g0"`), NotJSON, ""},
		{"a cut body", ChatCompletions, `{"model":"m","messages":[{"role":"us`, NotJSON, ""},
		{"a wrong literal", ChatCompletions, chat(`"a":nul`), NotJSON, ""},
		{"a number with a leading zero", ChatCompletions, chat(`"a":01`), NotJSON, ""},
		{"a token id with a leading zero", Completions, `{"model":"m","prompt":[1,02]}`, NotJSON, ""},
		{"brackets that do not match", ChatCompletions, chat(`"a":[{]}`), NotJSON, ""},
		{"NaN", ChatCompletions, chat(`"a":NaN`), NotJSON, ""},
		{"too deep", Completions, deep(MaxDepth), NotJSON, ""},

		{"no messages", ChatCompletions, `{"model":"m","prompt":"x"}`, MissingField, "messages"},
		{"no prompt", Completions, `{"model":"m","messages":[]}`, MissingField, "prompt"},
		{"an empty object", Generate, `{}`, MissingField, "text"},

		{"a number for a model", ChatCompletions, `{"model":1,"messages":[]}`, WrongType, "model"},
		{"a text for messages", ChatCompletions, `{"model":"m","messages":"x"}`, WrongType, "messages"},
		{"no completions", ChatCompletions, chat(`"n":0`), WrongType, "n"},
		{"a negative n", ChatCompletions, chat(`"n":-1`), WrongType, "n"},
		{"a huge n", ChatCompletions, chat(`"n":9223372036854775807`), WrongType, "n"},
		{"a fraction for n", ChatCompletions, chat(`"n":1.5`), WrongType, "n"},
		{"a huge limit", ChatCompletions, chat(`"max_tokens":92233720368547758070`), WrongType, "max_tokens"},
		{"a mixed list", Completions, `{"model":"m","prompt":["a",1]}`, WrongType, "prompt"},
		{"a negative token id", Completions, `{"model":"m","prompt":[1,-2]}`, WrongType, "prompt"},
		{"an empty list", Completions, `{"model":"m","prompt":[]}`, WrongType, "prompt"},
		{"an object for a prompt", Completions, `{"model":"m","prompt":{}}`, WrongType, "prompt"},
		{"texts for ids", Generate, `{"input_ids":["a"]}`, WrongType, "input_ids"},
		{"ids for a text", Generate, `{"text":[1,2]}`, WrongType, "text"},
		{"lists of ids in a chat", ChatCompletions, chat(`"input_ids":[[1]]`), WrongType, "input_ids"},
		{"a text for sampling parameters", Generate, `{"text":"a","sampling_params":"x"}`, WrongType, "sampling_params"},

		{"model twice", ChatCompletions, chat(`"model":"m2"`), DuplicateField, "model"},
		{"model twice, once escaped", ChatCompletions, chat(`"mod\u0065l":"m2"`), DuplicateField, "model"},
		{"max_new_tokens twice", Generate, `{"text":"a","sampling_params":{"max_new_tokens":1,"max_new_\u0074okens":2}}`, DuplicateField, "sampling_params.max_new_tokens"},
		{"a router field escaped", ChatCompletions, chat(`"\u0062ootstrap_room":1`), ForbiddenField, "bootstrap_room"},
		{"a router field with null", ChatCompletions, chat(`"kv_transfer_params":null`), ForbiddenField, "kv_transfer_params"},
		{"a router field twice, once escaped", ChatCompletions, chat(`"ec_transfer_params":1,"ec\u005ftransfer_params":2`), ForbiddenField, "ec_transfer_params"},
		{"another router field escaped", ChatCompletions, chat(`"decode\u005ftp_size":2`), ForbiddenField, "decode_tp_size"},
		{"an encoder's address", Generate, `{"text":"a","encoder_urls":["http://192.0.2.1"]}`, ForbiddenField, "encoder_urls"},
		{"a hand-off within sampling_params", TokensIn, `{"token_ids":[1],"sampling_params":{"extra_args":{"kv_transfer_params":{}}}}`, ForbiddenField, "kv_transfer_params"},
		{"a hand-off within vLLM's own arguments", ChatCompletions, chat(`"vllm_xargs":{"a":{},"kv_transfer_params":"x"}`), ForbiddenField, "vllm_xargs.kv_transfer_params"},
		{"the same escaped", Completions, `{"model":"m","prompt":"p","vllm\u005fxargs":{"kv\u005ftransfer_params":null}}`, ForbiddenField, "vllm_xargs.kv_transfer_params"},
		{"an encoder's within them", Completions, `{"model":"m","prompt":"p","vllm_xargs":{"ec_transfer_params":{}}}`, ForbiddenField, "vllm_xargs.ec_transfer_params"},
		{"vLLM's own arguments twice", Completions, `{"model":"m","prompt":"p","vllm_xargs":{},"vllm_xargs":{"kv_transfer_params":1}}`, DuplicateField, "vllm_xargs"},
	}
	for _, f := range []Field{BootstrapHost, BootstrapPort, BootstrapRoom, BootstrapPairKey, KVTransferParams,
		DisaggregatedParams, RoutedDPRank, DisaggPrefillDPRank, DataParallelRank, ECTransferParams, DecodeTPSize} {
		tests = append(tests, struct {
			name  string
			path  Path
			body  string
			kind  Kind
			field string
		}{"the router's " + f.String(), Completions, `{"` + f.String() + `":1}`, ForbiddenField, f.String()})
	}
	var r Request
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Scan(tt.path, []byte(tt.body), &r)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, tt.kind, e.Kind, err)
			require.Equal(t, tt.field, e.Field, err)
			require.NotEqual(t, "invalid", e.Kind.String())
			require.LessOrEqual(t, e.Offset, len(tt.body))
			require.NotEqual(t, "invalid body", err.Error())
		})
	}
	require.NoError(t, Scan(Completions, []byte(deep(MaxDepth-1)), &r))
}

// TestTheDocumentationListsWhatOnlyARouterMaySet reads docs/headers.md.
func TestTheDocumentationListsWhatOnlyARouterMaySet(t *testing.T) {
	doc, err := os.ReadFile("../../docs/headers.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(doc), "## What a client's body may not set")
	require.True(t, found)
	n := 0
	for f := range numFields {
		if f.routerOnly() {
			require.Contains(t, section, "`"+f.String()+"`")
			n++
		}
	}
	require.Equal(t, 18, n)
}

func TestScanInjectedLetsTheRoutersOwnFieldsPass(t *testing.T) {
	body := []byte(`{"model":"m","prompt":"p","bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":9223372036854775807}`)
	var r Request
	require.Error(t, Scan(Completions, body, &r))
	require.NoError(t, ScanInjected(Completions, body, &r))
	require.Equal(t, `9223372036854775807`, string(r.Value(BootstrapRoom).Of(body)))
	for _, fine := range []string{`"vllm_xargs":{"a":"kv_transfer_params","b":{"kv_transfer_params":1}}`, `"vllm_xargs":["kv_transfer_params"]`, `"vllm_xargs":null`} {
		require.NoError(t, Scan(Completions, []byte(`{"model":"m","prompt":"p",`+fine+`}`), &r), fine)
	}
	err := ScanInjected(Completions, []byte(`{"bootstrap_room":1,"bootstrap_room":2}`), &r)
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, DuplicateField, e.Kind)
}

// Every byte value at every place of a string, around all the strides of the
// fast loops, must be judged as encoding/json judges it.
func TestStringBytesAreJudgedAtEveryOffset(t *testing.T) {
	const size = 80
	for c := range 256 {
		for at := range size {
			s := []byte(`"` + strings.Repeat("a", size) + `"`)
			s[1+at] = byte(c)
			end := skipString(s, 1)
			ok := end == len(s)
			require.Equal(t, json.Valid(s), ok, "byte %#x at %d: %d", c, at, end)
			if c >= 0x80 || c == 0x7f {
				require.True(t, ok)
			}
		}
	}
	// Two odd bytes next to each other: borrows must not hide the first.
	for _, pair := range []string{"\x01\x00", "\"\x00", "\\\x00", "\x80\x1f", "\xff\"", "!\"", "#\"", " \x1f", "]\\", "[\\"} {
		for at := range size {
			s := []byte(`"` + strings.Repeat("~", size) + `"`)
			copy(s[1+at:], pair)
			require.Equal(t, json.Valid(s), skipString(s, 1) == len(s), "%q at %d", pair, at)
		}
	}
}

func TestSkipValidAgreesWithSkipValue(t *testing.T) {
	for _, s := range []string{`1`, `-1.5e+3`, `"a"`, `"\\"`, `"\\\""`, `""`, `[]`, `{}`, `[1,[2,{"a\"]":"}"}],"x"]`, ` {"a" : [ ] , "b":null}`,
		`["\\","]"]`, `true`, `[ "a\\\\" , { } ]`} {
		for _, tail := range []string{"", ",", " ]", "}"} {
			b := []byte(s + tail)
			i := skipSpace(b, 0)
			require.Equal(t, len(s), skipValue(b, i, 1), s)
			require.Equal(t, len(s), skipValid(b, i), s+tail)
		}
	}
}

func TestAppendTokenIDs(t *testing.T) {
	ids := func(s string) ([]uint32, error) { return AppendTokenIDs([]uint32{9}, []byte(s), Span{0, len(s)}) }
	for in, want := range map[string][]uint32{
		`[1,2,4294967295]`: {9, 1, 2, 4294967295},
		` [ 1 , 2 ]`:       {9, 1, 2},
		`[[1,2],[3]]`:      {9, 1, 2},
		`[]`:               {9},
	} {
		got, err := ids(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for _, in := range []string{``, `1`, `[1`, `[1,`, `["a"]`, `[4294967296]`, `[-1]`, `[1 2]`, `[99999999999999999999999]`, `{`} {
		got, err := ids(in)
		require.Error(t, err, in)
		require.Equal(t, []uint32{9}, got, in)
	}
	n, ok := CountTokenIDs([]byte(`[[1,2],[3]]`), Span{0, 11})
	require.True(t, ok)
	require.Equal(t, 3, n)
}

func TestFindValue(t *testing.T) {
	b := []byte(`{"count":2,"tokens":[1,2],"x"`)
	s, ok := FindValue(b, "tokens")
	require.True(t, ok)
	require.Equal(t, `[1,2]`, string(s.Of(b)))
	_, ok = FindValue(b, "none")
	require.False(t, ok)
	_, ok = FindValue([]byte(`[1]`), "tokens")
	require.False(t, ok)
}

func TestErrorsHoldNothingOfTheBody(t *testing.T) {
	var r Request
	for _, body := range []string{`{"model":"SECRET","messages":"SECRET"}`, `{"SECRET":}`, `{"model":{"SECRET":1}}`,
		`{"model":"m","messages":[],"n":"SECRET"}`, `SECRET`} {
		err := Scan(ChatCompletions, []byte(body), &r)
		require.Error(t, err)
		require.NotContains(t, fmt.Sprintf("%v %+v", err, err), "SECRET")
	}
}
