package local_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/tokens/bpe"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

var vllm = tokens.CallerOf(worker.VLLM)

// tokenizer is a tokenizer.json whose tokens are bytes, but that "a" and "b" merge, and that
// <end> is one token.
func tokenizer() []byte {
	var vocab []string
	for b := range 256 {
		vocab = append(vocab, fmt.Sprintf(`"<0x%02X>": %d`, b, b))
	}
	return fmt.Appendf(nil, `{"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
		"added_tokens": [{"id": 259, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
		"pre_tokenizer": null, "post_processor": null, "decoder": null,
		"model": {"type": "BPE", "byte_fallback": true, "vocab": {%s, "a": 256, "b": 257, "ab": 258}, "merges": ["a b"]}}`, strings.Join(vocab, ", "))
}

const config = `{"added_tokens_decoder": {"259": {"content": "<end>"}}, "chat_template": "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<end>{% endfor %}{% if tools %}tools{% endif %}{% if add_generation_prompt %}a{% endif %}"}`

func model(t *testing.T) *local.Model {
	m, err := local.New(local.Files{Tokenizer: tokenizer(), Config: []byte(config)}, local.Limits{Encoders: 2})
	require.NoError(t, err)
	require.NoError(t, m.Chat())
	return m
}

func tokensOf(t *testing.T, m *local.Model, path openai.Path, body string) (ids []uint32, n int, err error) {
	var r openai.Request
	require.NoError(t, openai.Scan(path, []byte(body), &r))
	return m.Append(nil, vllm, &r, []byte(body))
}

func TestPromptsOfTextAndMessages(t *testing.T) {
	m := model(t)
	for _, c := range []struct {
		path openai.Path
		body string
		ids  []uint32
		n    int
	}{
		{openai.Completions, `{"model":"m","prompt":"abc"}`, []uint32{258, 'c'}, 2},
		{openai.Completions, `{"model":"m","prompt":"\u0061\u0062\n<end>"}`, []uint32{258, '\n', 259}, 3},
		{openai.Completions, `{"model":"m","prompt":["ab","ccc"]}`, []uint32{258}, 4},
		{openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"ab"}]}`, []uint32{'u', ':', 258, 259, 256}, 5},
		{openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"c"}],"add_generation_prompt":false}`, []uint32{'u', ':', 'c', 259}, 4},
	} {
		ids, n, err := tokensOf(t, m, c.path, c.body)
		require.NoError(t, err, c.body)
		require.Equal(t, c.ids, ids, c.body)
		require.Equal(t, c.n, n, c.body)
	}
}

// TestWhatIsNotKnownIsAnError, and no ids: an engine is asked then.
func TestWhatIsNotKnownIsAnError(t *testing.T) {
	m := model(t)
	for what, c := range map[string]struct {
		path openai.Path
		body string
	}{
		"half of a surrogate pair": {openai.Completions, `{"model":"m","prompt":"a\ud800b"}`},
		"a template of its own":    {openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"c"}],"chat_template":"x"}`},
		"special tokens":           {openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"c"}],"add_special_tokens":true}`},
		"a picture":                {openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/y"}}]}]}`},
		"token ids":                {openai.Completions, `{"model":"m","prompt":[1,2]}`},
	} {
		ids, n, err := tokensOf(t, m, c.path, c.body)
		require.Error(t, err, what)
		require.Empty(t, ids, what)
		require.Zero(t, n, what)
		require.NotContains(t, err.Error(), "http", what)
	}
}

func TestFilesThatAreNotUnderstoodAreRefused(t *testing.T) {
	for what, c := range map[string]struct {
		files fstest.MapFS
		says  string
	}{
		"no tokenizer":        {fstest.MapFS{}, "tokenizer.json is not there"},
		"no JSON":             {fstest.MapFS{"tokenizer.json": {Data: []byte("x")}}, "tokenizer.json"},
		"another model":       {fstest.MapFS{"tokenizer.json": {Data: []byte(strings.Replace(string(tokenizer()), `"BPE"`, `"WordPiece"`, 1))}}, "WordPiece"},
		"a token more":        {fstest.MapFS{"tokenizer.json": {Data: tokenizer()}, "tokenizer_config.json": {Data: []byte(`{"added_tokens_decoder": {"260": {"content": "<more>"}}}`)}}, "added_tokens_decoder 260"},
		"too long a template": {fstest.MapFS{"tokenizer.json": {Data: tokenizer()}, "chat_template.jinja": {Data: make([]byte, 1<<20+1)}}, "chat_template.jinja: expected at most"},
	} {
		f, err := local.Read(c.files)
		if err == nil {
			_, err = local.New(f, local.Limits{})
		}
		require.ErrorContains(t, err, c.says, what)
	}
}

func TestATemplateThatIsNotKnownLeavesTextToThePlugin(t *testing.T) {
	m, err := local.New(local.Files{Tokenizer: tokenizer(), Config: []byte(`{"chat_template": "{% include 'x' %}"}`)}, local.Limits{})
	require.NoError(t, err)
	require.Error(t, m.Chat())
	_, _, err = tokensOf(t, m, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"c"}]}`)
	require.Error(t, err)
	ids, _, err := tokensOf(t, m, openai.Completions, `{"model":"m","prompt":"ab"}`)
	require.NoError(t, err)
	require.Equal(t, []uint32{258}, ids)
}

// TestATrialSaysWhereTheTokensBeginToDiffer: an engine of the same files passes every trial
// that the files know; one that adds a token in the middle does not, and the place is told.
func TestATrialSaysWhereTheTokensBeginToDiffer(t *testing.T) {
	m := model(t)
	compared := 0
	for _, trial := range local.Trials() {
		ids, _, err := tokensOf(t, m, trial.Path, string(trial.Body))
		if err != nil {
			continue
		}
		compared++
		ours, err := m.Tokens(&trial, vllm)
		require.NoError(t, err)
		require.Empty(t, m.Compare(&trial, vllm, ours, ids), trial.Name)
		other := append(append(append([]uint32{}, ids[:len(ids)/2]...), 7777), ids[len(ids)/2:]...)
		require.Contains(t, m.Compare(&trial, vllm, ours, other), fmt.Sprintf("%s: the engine has %d tokens, the files give %d, and they differ from token %d on, near byte ",
			trial.Name, len(ids)+1, len(ids), len(ids)/2))
	}
	require.GreaterOrEqual(t, compared, 14, "the files know most of the trials")
}

// TestManyRequestsAtOnce: they have few encoders, and the same ids as alone.
func TestManyRequestsAtOnce(t *testing.T) {
	m := model(t)
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("abc", 500) + `"}]}`
	want, _, err := tokensOf(t, m, openai.ChatCompletions, body)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			var r openai.Request
			if err := openai.Scan(openai.ChatCompletions, []byte(body), &r); err != nil {
				t.Error(err)
				return
			}
			ids, _, err := m.Append(nil, vllm, &r, []byte(body))
			if err != nil || len(ids) != len(want) {
				t.Errorf("%d ids, %v", len(ids), err)
			}
		})
	}
	wg.Wait()
}

func TestATextBeyondTheLimitIsAnError(t *testing.T) {
	m, err := local.New(local.Files{Tokenizer: tokenizer()}, local.Limits{Text: bpe.Limits{TextBytes: 100}})
	require.NoError(t, err)
	_, _, err = tokensOf(t, m, openai.Completions, `{"model":"m","prompt":"`+strings.Repeat("x", 101)+`"}`)
	require.ErrorIs(t, err, bpe.ErrTooLong)
}

// TestATemplateMayWriteTheDate of today, in UTC; the time of the day it may not.
func TestATemplateMayWriteTheDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it is midnight on 1 January 2000
		for format, want := range map[string]bool{"%Y-%m-%d": true, "%H:%M": false} {
			c := fmt.Sprintf(`{"chat_template": "{{ strftime_now('%s') }}"}`, format)
			m, err := local.New(local.Files{Tokenizer: tokenizer(), Config: []byte(c)}, local.Limits{})
			require.NoError(t, err)
			ids, _, err := tokensOf(t, m, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"c"}]}`)
			require.Equal(t, want, err == nil, format)
			if want {
				require.Equal(t, []uint32{'2', '0', '0', '0', '-', '0', '1', '-', '0', '1'}, ids)
			}
		}
	})
}
