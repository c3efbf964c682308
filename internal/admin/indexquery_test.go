package admin

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAQueryOfTheIndexIsReadWhole(t *testing.T) {
	for body, want := range map[string]IndexQuery{
		`{"tokens":[1,4294967295],"block_size":16,"model":"m","lora":"l","cache_salt":"s"}`: {Tokens: []uint32{1, 1<<32 - 1}, BlockSize: 16, Model: "m", LoRA: "l", CacheSalt: "s"},
		`{"tokens":[1],"model":"m"}`:                                   {Tokens: []uint32{1}, Model: "m"},
		`{"hashes":["18446744073709551615","0xFf","010"],"model":"m"}`: {Hashes: []uint64{1<<64 - 1, 255, 10}, Model: "m"},
	} {
		q, err := parseIndexQuery([]byte(body))
		require.NoError(t, err, body)
		require.Equal(t, want, q)
	}
}

func TestAWrongQueryOfTheIndexIsToldWhatWasExpected(t *testing.T) {
	for body, want := range map[string]string{
		``:                                    `expected {"tokens": [ids]`,
		`[1]`:                                 `expected {"tokens": [ids]`,
		`{}`:                                  `has 0 tokens and 0 hashes: expected {"tokens"`,
		`{"tokens":[]}`:                       `has 0 tokens and 0 hashes`,
		`{"tokens":[1],"hashes":["1"]}`:       `has 1 tokens and 1 hashes`,
		`{"tokens":[1]}`:                      "block_size is missing: expected it, or the model",
		`{"tokens":[1],"block_size":0}`:       "block_size 0: expected at least 1",
		`{"tokens":[1],"block_size":"16"}`:    "block_size: it is or holds a string: expected a number",
		`{"tokens":[-1],"block_size":16}`:     "expected a list of token ids, 0 to 4294967295",
		`{"tokens":"hello","block_size":16}`:  "tokens: it is or holds a string: expected a list of token ids",
		`{"tokens":[1],"blocksize":16}`:       `unknown field "blocksize": expected {"tokens"`,
		`{"tokens":[1],"model":7}`:            "model: it is or holds a number: expected a string",
		`{"hashes":[12]}`:                     "expected a list of strings, decimal or 0x…",
		`{"hashes":["1","0x"]}`:               `hashes[1] "0x": expected 64 bits without sign`,
		`{"hashes":["18446744073709551616"]}`: "expected 64 bits",
		`{"hashes":["-1"]}`:                   "expected 64 bits",
		`{"hashes":["ff"]}`:                   "expected 64 bits",
		`{"hashes":["1"],"block_size":16}`:    "expected them with tokens only",
		`{"hashes":["1"],"lora":"l"}`:         "expected them with tokens only",
		`{"hashes":["1"],"cache_salt":"s"}`:   "expected them with tokens only",
		`{"hashes":["1"]} {}`:                 "expected one JSON object and nothing after it",
	} {
		_, err := parseIndexQuery([]byte(body))
		require.ErrorContains(t, err, want, body)
	}
}

func TestTheIndexIsAskedByPost(t *testing.T) {
	s := newServer(t, func(c *Config) {
		c.Index = func(q IndexQuery) (IndexAnswer, error) {
			if q.Model == "x" {
				return IndexAnswer{}, errors.New("model: expected one that is served")
			}
			a := IndexAnswer{PromptBlocks: len(q.Hashes)}
			if q.Model == "m" {
				a.Ranks = []IndexOverlap{{WorkerID: 1<<64 - 1, DPRank: 2, Role: "decode", BlockSize: 16, TreeBlocks: 3, HostBlocks: 2, DiskBlocks: 4, RoutedBlocks: 1}}
			}
			return a, nil
		}
	})
	post := func(body string) *httptest.ResponseRecorder {
		return ask(s, "POST", "/debug/index", strings.NewReader(body))
	}
	w := post(`{"hashes":["1","2"],"model":"m"}`)
	require.Equal(t, 200, w.Code)
	require.JSONEq(t, `{"prompt_blocks":2,"ranks":[{"worker_id":"18446744073709551615","dp_rank":2,"role":"decode","block_size":16,"tree_blocks":3,"host_blocks":2,"disk_blocks":4,"routed_blocks":1}]}`, w.Body.String())
	require.JSONEq(t, `{"prompt_blocks":1,"ranks":[]}`, post(`{"hashes":["1"]}`).Body.String())
	w = post(`{"hashes":["1"],"model":"x"}`)
	require.Equal(t, 400, w.Code)
	require.JSONEq(t, `{"error":{"message":"model: expected one that is served"}}`, w.Body.String())
	require.Equal(t, 400, post(`{}`).Code)
	w = post(`{"hashes":["` + strings.Repeat("1", maxBody) + `"]}`)
	require.Equal(t, 413, w.Code)
	require.Contains(t, w.Body.String(), "expected at most 8388608 bytes")
	require.Equal(t, 405, get(s, "/debug/index").Code)
	require.Equal(t, 404, ask(newServer(t, nil), "POST", "/debug/index", strings.NewReader("{}")).Code)
}

func FuzzIndexQuery(f *testing.F) {
	f.Add([]byte(`{"tokens":[1,2],"block_size":16}`))
	f.Add([]byte(`{"hashes":["0x1","2"],"model":"m"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		q, err := parseIndexQuery(body)
		if err != nil {
			return
		}
		require.NotEqual(t, len(q.Tokens) > 0, len(q.Hashes) > 0)
		require.GreaterOrEqual(t, q.BlockSize, 0)
	})
}
