package openai

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAppendInjected(t *testing.T) {
	members := []byte(`"bootstrap_host":"10.0.0.5","bootstrap_port":8998,"bootstrap_room":1`)
	for _, tt := range []struct{ name, body, want string }{
		{"an ordinary body", `{"text":"a"}`, `{"text":"a",` + string(members) + `}`},
		{"white space around the brace", "{\"text\":\"a\" \n} \n", "{\"text\":\"a\" \n," + string(members) + "} \n"},
		{"a brace in the last text", `{"text":"a}"}`, `{"text":"a}",` + string(members) + `}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := mustScan(t, Generate, tt.body)
			require.Equal(t, tt.want, string(AppendInjected(nil, []byte(tt.body), r, members)))
			require.Equal(t, tt.body, string(AppendInjected(nil, []byte(tt.body), r, nil)))
			for _, room := range []int{0, 1000} {
				r = mustScan(t, Generate, tt.body)
				b := append(make([]byte, 0, len(tt.body)+room), tt.body...)
				require.Equal(t, tt.want, string(InjectInPlace(b, r, members)))
				require.Equal(t, byte('}'), tt.want[r.End()])
			}
		})
	}
	t.Run("an empty object", func(t *testing.T) {
		var r Request
		body := []byte(` { } `)
		require.Error(t, Scan(Generate, body, &r)) // text is missing, but the places are known
		require.Equal(t, ` { "a":1} `, string(AppendInjected(nil, body, &r, []byte(`"a":1`))))
		body = InjectInPlace(body, &r, []byte(`"a":1`))
		body = InjectInPlace(body, &r, []byte(`"b":2`))
		require.Equal(t, ` { "a":1,"b":2} `, string(body))
	})
}

func TestAppendEdited(t *testing.T) {
	one, no := []byte("1"), []byte("false")
	for _, tt := range []struct {
		name, body, want string
		edits            []Edit
	}{
		{"nothing to do", `{"text":"a"}`, `{"text":"a"}`, nil},
		{"a value is replaced in its place", `{"str\u0065am" : true,"text":"a"}`, `{"str\u0065am" : false,"text":"a"}`, []Edit{{Stream, no}}},
		{"the first member goes", `{"stream":true, "text":"a"}`, `{ "text":"a"}`, []Edit{{Stream, nil}}},
		{"the last member goes", `{"text":"a", "stream":true }`, `{"text":"a" }`, []Edit{{Stream, nil}}},
		{"one in the middle goes", `{"text":"a" , "stream":true , "n":2}`, `{"text":"a"  , "n":2}`, []Edit{{Stream, nil}}},
		{"the two first go", `{"stream":true,"n":1,"text":"a"}`, `{"text":"a"}`, []Edit{{N, nil}, {Stream, nil}}},
		{"the two last go", `{"text":"a","stream":true,"n":1}`, `{"text":"a"}`, []Edit{{N, nil}, {Stream, nil}}},
		{"all go", `{"stream":true,"text":"a","n":1}`, `{}`, []Edit{{N, nil}, {Stream, nil}, {Text, nil}}},
		{"all go and one comes", `{"text":"a"}`, `{"n":1}`, []Edit{{N, one}, {Text, nil}}},
		{"what is not there is not removed", `{"text":"a"}`, `{"text":"a"}`, []Edit{{N, nil}}},
		{"what is not there is added in order", `{"text":"a" }`, `{"text":"a" ,"n":1,"stream":false}`, []Edit{{N, one}, {Stream, no}}},
		{"the last edit of a field counts", `{"text":"a"}`, `{"text":"a","n":1}`, []Edit{{N, no}, {N, one}}},
		{"the first goes, an unknown one stays", `{"stream":true,"x":0,"n":2,"text":"a"}`, `{"x":0,"text":"a"}`, []Edit{{N, nil}, {Stream, nil}}},
		{"the nested limit is replaced", `{"text":"a","sampling_params":{"max_new_tokens":9,"t":0}}`, `{"text":"a","sampling_params":{"max_new_tokens":1,"t":0}}`, []Edit{{MaxNewTokens, one}}},
		{"the nested limit is put in", `{"text":"a","sampling_params":{"t":0}}`, `{"text":"a","sampling_params":{"max_new_tokens":1,"t":0}}`, []Edit{{MaxNewTokens, one}}},
		{"the nested limit is put into nothing", `{"text":"a","sampling_params":{ }}`, `{"text":"a","sampling_params":{"max_new_tokens":1 }}`, []Edit{{MaxNewTokens, one}}},
		{"null gives way", `{"text":"a","sampling_params":null}`, `{"text":"a","sampling_params":{"max_new_tokens":1}}`, []Edit{{MaxNewTokens, one}}},
		{"the object is added", `{"text":"a"}`, `{"text":"a","sampling_params":{"max_new_tokens":1}}`, []Edit{{MaxNewTokens, one}}},
		{"the nested limit goes", `{"text":"a","sampling_params":{"max_new_tokens":9,"t":0}}`, `{"text":"a","sampling_params":{"t":0}}`, []Edit{{MaxNewTokens, nil}}},
		{"the nested limit goes from the end", `{"text":"a","sampling_params":{"t":0,"max_new_tokens":9}}`, `{"text":"a","sampling_params":{"t":0}}`, []Edit{{MaxNewTokens, nil}}},
		{"the nested minimum is replaced after the limit", `{"text":"a","sampling_params":{"max_new_tokens":9,"min_new_tokens":5}}`, `{"text":"a","sampling_params":{"max_new_tokens":1,"min_new_tokens":1}}`, []Edit{{MaxNewTokens, one}, {MinNewTokens, one}}},
		{"and before it", `{"text":"a","sampling_params":{"min_new_tokens":5,"max_new_tokens":9}}`, `{"text":"a","sampling_params":{"min_new_tokens":1}}`, []Edit{{MinNewTokens, one}, {MaxNewTokens, nil}}},
		{"and without it", `{"text":"a","sampling_params":{"min_new_tokens":5}}`, `{"text":"a","sampling_params":{"max_new_tokens":1,"min_new_tokens":1}}`, []Edit{{MaxNewTokens, one}, {MinNewTokens, one}}},
		{"and is never put in", `{"text":"a","sampling_params":null}`, `{"text":"a","sampling_params":null}`, []Edit{{MinNewTokens, one}}},
		{"a list of parameters is let be", `{"text":"a","sampling_params":[{"max_new_tokens":9}]}`, `{"text":"a","sampling_params":[{"max_new_tokens":9}]}`, []Edit{{MaxNewTokens, one}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := mustScan(t, Generate, tt.body)
			require.Equal(t, tt.want, string(AppendEdited(nil, []byte(tt.body), r, tt.edits...)))
			require.Equal(t, "x"+tt.want, string(AppendEdited([]byte("x"), []byte(tt.body), r, tt.edits...)))
		})
	}
}

// checkEdits holds the result of edits against the same edits on a map, and the
// bytes outside the edited members against the body.
func checkEdits(t *testing.T, body []byte, r *Request, edits []Edit) {
	t.Helper()
	var want map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(body, &want))
	for _, e := range edits {
		if e.Value == nil {
			delete(want, e.Field.String())
		} else {
			want[e.Field.String()] = e.Value
		}
	}
	out := AppendEdited(nil, body, r, edits...)
	var got map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(out, &got), "%q", out)
	require.Equal(t, want, got, "%q → %q", body, out)

	// Every kept member, and the text before and after the object, is there
	// byte for byte and in order.
	start := skipSpace(body, 0)
	require.Equal(t, string(body[:start+1]), string(out[:start+1]))
	require.True(t, strings.HasSuffix(string(out), string(body[r.End():])))
	rest := string(out)
	edited := map[Field]bool{}
	for _, e := range edits {
		edited[e.Field] = true
	}
	eachMember(body, start, 0, func(m member) bool {
		f := lookupKey(body[m.key.Start+1 : m.key.End-1])
		if f != NoField && edited[f] {
			return true
		}
		text := string(body[m.key.Start:m.val.End])
		at := strings.Index(rest, text)
		require.GreaterOrEqual(t, at, 0, "%q lost from %q", text, out)
		rest = rest[at+len(text):]
		return true
	})
}

func TestEditsEqualEditsOfAMap(t *testing.T) {
	seed := uint64(20261121)
	rng := rand.New(rand.NewPCG(seed, 1))
	ws := func() string { return []string{"", "", " ", "\n\t", "  "}[rng.IntN(5)] }
	values := []string{`1`, `"a,}"`, `[1, {"b":"]"}]`, `{ }`, `null`, `true`, `"\"\\"`, `-1.5e3`}
	fields := []Field{Tools, ToolChoice, StreamOptions, MinTokens, Documents, RequestID, NVExt, BootstrapRoom, BootstrapHost}
	for n := range 5000 {
		members := []string{`"model"` + ws() + `:"m"`, `"prompt":` + ws() + `"p"`}
		for _, f := range fields {
			if rng.IntN(2) == 0 {
				members = append(members, `"`+f.String()+`"`+ws()+`:`+ws()+values[rng.IntN(len(values))])
			}
		}
		for k := range rng.IntN(3) {
			members = append(members, fmt.Sprintf(`"u%d":%s`, k, values[rng.IntN(len(values))]))
		}
		rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		var b strings.Builder
		b.WriteString(ws() + "{" + ws())
		for i, m := range members {
			if i > 0 {
				b.WriteString(ws() + "," + ws())
			}
			b.WriteString(m)
		}
		b.WriteString(ws() + "}" + ws())
		body := []byte(b.String())
		var r Request
		require.NoError(t, ScanInjected(Completions, body, &r), "seed %d, case %d: %s", seed, n, body)
		var edits []Edit
		for _, f := range append(fields, Model, PromptText) {
			switch rng.IntN(4) {
			case 0:
				edits = append(edits, Edit{f, nil})
			case 1:
				edits = append(edits, Edit{f, []byte(values[rng.IntN(len(values))])})
			}
		}
		rng.Shuffle(len(edits), func(i, j int) { edits[i], edits[j] = edits[j], edits[i] })
		checkEdits(t, body, &r, edits)
	}
}
