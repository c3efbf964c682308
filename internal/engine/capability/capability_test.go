package capability

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
)

const small = `
# Of an engine.
source 1.2 api.py
apart /v1/completions # both
pass model prompt temperature
stop logprobs over 3 with echo true
stop best_of not 1
source 1.3 other.py Class
one /v1/embeddings
`

func TestWhatAFileSays(t *testing.T) {
	table, err := read(small)
	require.NoError(t, err)
	require.Equal(t, []Path{
		{"/v1/completions", true, false, Source{"1.2", "api.py"}}, {"/v1/embeddings", false, false, Source{"1.3", "other.py Class"}},
	}, table.Paths)
	require.True(t, table.Takes(openai.Completions))
	require.False(t, table.Takes(openai.ChatCompletions))
	require.Len(t, table.Rows, 5)
	require.Equal(t, "over 3 with echo true", table.Rows[3].Stops)
	require.Equal(t, Source{"1.2", "api.py"}, table.Rows[4].Source)
	require.False(t, (*Table)(nil).Takes(openai.Completions))
}

func TestAFileThatIsMalformedIsRefusedWithItsLine(t *testing.T) {
	for file, want := range map[string]string{
		"pass a":                                 `line 1: pass: expected a line "source VERSION PLACE" before it`,
		"source 1":                               "",
		"source":                                 "line 1: source: expected something behind it",
		"\nsource 1 a\nsplit b":                  "line 3: split: expected source, apart, one, any, pass, tokens, stop or never",
		"source 1 a\nstop b":                     "line 2: stop: expected MEMBER TEST, with MEMBER TEST or nothing behind it",
		"source 1 a\nstop b maybe":               "line 2: maybe: expected a number or a word behind it",
		"source 1 a\nstop b maybe 1":             "line 2: maybe: expected given, true, empty, is, beside, from, over or not",
		"source 1 a\nstop b over":                "line 2: over: expected a number or a word behind it",
		"source 1 a\nstop b over x":              `line 2: over: strconv.ParseFloat: parsing "x": invalid syntax`,
		"source 1 a\nstop b true with c true":    "",
		"source 1 a\nstop b true with c true d":  "line 2: stop: expected MEMBER TEST, with MEMBER TEST or nothing behind it",
		"source 1 a\nstop b true c true d given": "line 2: stop: expected MEMBER TEST, with MEMBER TEST or nothing behind it",
	} {
		_, err := read(file)
		if want == "" {
			require.NoError(t, err, file)
			continue
		}
		require.EqualError(t, err, want, file)
		require.PanicsWithValue(t, "capabilities: "+want, func() { Must(file) })
	}
}

// TestWhatNoRowKnowsIsAnObstacle: a client's names are told as far as they are short, in valid
// UTF-8; beyond so many members nothing is read, and nothing is handed over.
func TestWhatNoRowKnowsIsAnObstacle(t *testing.T) {
	table := Must(small)
	many := func(n int, value string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"m%d":%s`, i, value)
		}
		return b.String()
	}
	known := func(member string) bool { return member == "ours" }
	for members, want := range map[string]Obstacle{
		``:                                     {},
		`,"temperature":1,"ours":[1]`:          {},
		`,"echo":true`:                         {"echo", true},
		`,"echo":true,"logprobs":4`:            {"echo", true},
		`,"logprobs":4`:                        {},
		`,"best_of":2`:                         {"best_of", false},
		`,"theirs":null`:                       {},
		`,"their\u0073":0`:                     {"theirs", true},
		`,"":0,"temperature":1`:                {`""`, true},
		`,"` + strings.Repeat("é", 40) + `":0`: {strings.Repeat("é", 32), true},
		many(200, "0"):                         {"m0", true},
		many(200, "null"):                      {"members", true},
		many(100, "null"):                      {},
	} {
		var r openai.Request
		body := []byte(`{"model":"m","prompt":"a"` + members + `}`)
		require.NoError(t, openai.Scan(openai.Completions, body, &r))
		got := table.Obstacle(body, &r, known)
		require.Equal(t, want, got, members)
		require.Equal(t, want, Join([]openai.Path{openai.Completions}, table, table).Obstacle(body, &r, known), members)
	}
}

func TestARequestIsJudgedWithoutAllocations(t *testing.T) {
	native := Must("source 1 a\napart /generate\npass text sampling_params sampling_params.max_new_tokens\nstop sampling_params.n over 1\nnever text empty\n")
	for body, table := range map[string]*Table{
		`{"model":"m","prompt":"a","temperature":0.5,"logprobs":2,"best_of":1}`: Must(small),
		`{"text":"a","sampling_params":[{"max_new_tokens":4},{"n":1}]}`:         native,
	} {
		path := openai.Completions
		if table == native {
			path = openai.Generate
		}
		var r openai.Request
		require.NoError(t, openai.Scan(path, []byte(body), &r))
		b := []byte(body)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if table.Obstacle(b, &r, nil) != (Obstacle{}) || table.Ends(b, &r) != nil {
				panic("an obstacle")
			}
		}), body)
	}
}

func TestAJoinHasTheObstaclesOfAll(t *testing.T) {
	other := Must("source 1 a\napart /v1/chat/completions /v1/completions\npass model prompt messages theirs\nstop temperature over 1\n")
	both := Join([]openai.Path{openai.ChatCompletions, openai.Completions}, Must(small), other)
	require.True(t, both.Takes(openai.Completions))
	require.True(t, both.Takes(openai.ChatCompletions), "an engine that does not take it is not asked")
	require.False(t, both.Takes(openai.Generate))
	var r openai.Request
	body := []byte(`{"model":"m","prompt":"a","theirs":1,"temperature":2}`)
	require.NoError(t, openai.Scan(openai.Completions, body, &r))
	require.Equal(t, Obstacle{Member: "temperature"}, both.Obstacle(body, &r, nil))
}

func TestAValueByWhichTheEngineEndsIsFound(t *testing.T) {
	table := Must("source 1 a\napart /generate\npass text input_ids\nnever text empty\n")
	for body, want := range map[string]string{
		`{"text":""}`: "text", `{"text":["a",""]}`: "text", `{"te\u0078t" : "" }`: "text",
		`{"text":"a"}`: "", `{"text":[" "]}`: "", `{"input_ids":[1],"other":""}`: "",
	} {
		var r openai.Request
		require.NoError(t, openai.Scan(openai.Generate, []byte(body), &r), body)
		got := ""
		if row := table.Ends([]byte(body), &r); row != nil {
			got = row.Member
		}
		require.Equal(t, want, got, body)
	}
	require.Nil(t, (*Table)(nil).Ends(nil, new(openai.Request)))
}

// TestMembersThatChangeTheTokensAreTold: with their values, unless they are null; and all that may
// hide among too many.
func TestMembersThatChangeTheTokensAreTold(t *testing.T) {
	table := Must("source 1 a\napart /generate\npass text input_ids\ntokens picture sound\n").Only(openai.Generate)
	for body, want := range map[string][]string{
		`{"text":"a","other":1}`: nil, `{"text":"a","picture":null}`: nil, `{"sampling_params":{"picture":1},"text":"a"}`: nil,
		`{"text":"a","sound":[2],"p\u0069cture":"b"}`: {"[2]", `"b"`},
	} {
		var r openai.Request
		require.NoError(t, openai.Scan(openai.Generate, []byte(body), &r), body)
		var got []string
		table.Retokens([]byte(body), &r, func(v []byte) { got = append(got, string(v)) })
		require.Equal(t, want, got, body)
	}
	var r openai.Request
	many := []byte(`{"text":"a"` + strings.Repeat(`,"m":1`, openai.MostOthers) + `,"picture":1}`)
	require.NoError(t, openai.Scan(openai.Generate, many, &r))
	table.Retokens(many, &r, func(v []byte) { require.Equal(t, many, v) })
	require.NotPanics(t, func() { (*Table)(nil).Retokens(many, &r, nil) })
}

// TestWhatNoRowHasIsUnlisted: in one order, once each, and no more and no longer than may be kept.
func TestWhatNoRowHasIsUnlisted(t *testing.T) {
	table := Must(small)
	of := func(path openai.Path, body string) []string {
		var r openai.Request
		require.NoError(t, openai.Scan(path, []byte(body), &r))
		return table.Unlisted([]byte(body), &r)
	}
	const completions = openai.Completions
	require.Empty(t, of(completions, `{"model":"m","prompt":"a","temperature":1,"best_of":2,"nothing":null}`))
	require.Equal(t, []string{"a", "z"}, of(completions, `{"z":1,"model":"m","best_of":2,"prompt":"a","a":[]}`))
	require.Empty(t, of(openai.ChatCompletions, `{"model":"m","messages":[],"a":1}`), "nothing is known of that path")
	var many strings.Builder
	for i := range 20 {
		fmt.Fprintf(&many, `,"%s%02d":1`, strings.Repeat("long", 30), 20-i)
		fmt.Fprintf(&many, `,"n%02d":1`, 20-i)
	}
	got := of(completions, `{"model":"m","prompt":"a"`+many.String()+`}`)
	require.Len(t, got, mostUnlisted)
	require.Equal(t, strings.Repeat("long", 16), got[0])
	require.Equal(t, "n01", got[1])
}
