package tokens

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// bytesTokenizer is a tokenizer.json whose tokens are the bytes of the text, but that "a"
// and "b" merge.
func bytesTokenizer() []byte {
	var vocab []string
	for b := range 256 {
		vocab = append(vocab, fmt.Sprintf(`"<0x%02X>": %d`, b, b))
	}
	return fmt.Appendf(nil, `{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": [],
		"pre_tokenizer": null, "post_processor": null, "decoder": null,
		"model": {"type": "BPE", "byte_fallback": true, "vocab": {%s, "a": 256, "b": 257, "ab": 258}, "merges": ["a b"]}}`, strings.Join(vocab, ", "))
}

const aTemplate = `{"chat_template": "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"}`

func filesModel(t *testing.T) *local.Model {
	m, err := local.New(local.Files{Tokenizer: bytesTokenizer(), Config: []byte(aTemplate)}, local.Limits{})
	require.NoError(t, err)
	require.NoError(t, m.Chat())
	return m
}

// counting is an engine that tokenizes as a model's files do, except where odd says so.
type counting struct {
	m    *local.Model
	of   worker.Engine          // none: vLLM
	odd  func(body []byte) bool // its answer has a token more
	swap func(body []byte) bool // its answer has another token
	down bool

	mu    sync.Mutex
	asked int
}

func (c *counting) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	if c.down {
		return answered(http.StatusServiceUnavailable, "")
	}
	c.mu.Lock()
	c.asked++
	c.mu.Unlock()
	var r openai.Request
	path := openai.Completions
	if strings.Contains(string(body), `"messages"`) {
		path = openai.ChatCompletions
	}
	err = openai.Scan(path, body, &r)
	if err != nil {
		return nil, err
	}
	ids, _, err := c.m.Append(nil, CallerOf(cmp.Or(c.of, worker.VLLM)), &r, body)
	if err != nil {
		return answered(http.StatusBadRequest, "")
	}
	if c.odd != nil && c.odd(body) {
		ids = append(ids, 1)
	}
	if c.swap != nil && c.swap(body) {
		ids[0]++
	}
	text, err := json.Marshal(map[string]any{"tokens": ids})
	if err != nil {
		return nil, err
	}
	return answered(http.StatusOK, string(text))
}

func (c *counting) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

func filesResolver(t *testing.T, c *counting, more ...func(*Config)) (*Resolver, *[]Standing) {
	var told []Standing
	var mu sync.Mutex
	cfg := Config{
		Transport: c, Local: map[string]*local.Model{"m": filesModel(t)},
		OnStanding: func(s Standing) {
			mu.Lock()
			defer mu.Unlock()
			s.Since = time.Time{}
			told = append(told, s)
		},
	}
	for _, set := range more {
		set(&cfg)
	}
	r, err := New(cfg)
	require.NoError(t, err)
	return r, &told
}

func filesQuery(t *testing.T, path openai.Path, body string) Query {
	q := Query{Key: worker.Key{Model: "m"}, Body: []byte(body), Request: new(openai.Request), BlockSize: 4, Engine: worker.VLLM}
	require.NoError(t, openai.Scan(path, q.Body, q.Request))
	return q
}

// TestFilesAreUsedOnceATrialHasShownThatTheyAreExact, and not before.
func TestFilesAreUsedOnceATrialHasShownThatTheyAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{m: filesModel(t)}
		r, told := filesResolver(t, c)
		defer r.Close()
		from := []worker.Endpoint{{}}
		q := filesQuery(t, openai.Completions, `{"model":"m","prompt":"abcab and more"}`)
		_, ok := r.Fast(q, new(Scratch))
		require.False(t, ok, "no engine has been asked")
		byEngine, err := r.Engine(context.Background(), q, from)
		require.NoError(t, err)
		synctest.Wait()
		require.ElementsMatch(t, []Standing{
			{Model: "m", Engine: worker.VLLM, State: Exact}, {Model: "m", Engine: worker.VLLM, Chat: true, State: Exact},
		}, *told)
		asked := c.count()
		require.Greater(t, asked, 10)
		for _, q := range []Query{
			filesQuery(t, openai.Completions, `{"model":"m","prompt":"something else ab"}`),
			filesQuery(t, openai.Completions, `{"model":"m","prompt":["one","two"]}`),
			filesQuery(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"hello"}]}`),
		} {
			p, ok := r.Fast(q, new(Scratch))
			require.True(t, ok)
			require.Equal(t, FromLocal, p.Source)
			theirs, err := r.Engine(context.Background(), q, from)
			require.NoError(t, err)
			require.Equal(t, theirs.Tokens, p.Tokens)
			require.Equal(t, theirs.Hashes, p.Hashes)
			require.Equal(t, theirs.ISLTokens, p.ISLTokens)
		}
		require.Equal(t, []uint32{258, 'c', 258}, byEngine.Tokens[:3])
	})
}

// TestFilesThatDifferAreNotUsed: where one trial differs, the files are out of use for that
// kind of prompt, and the log can say where.
func TestFilesThatDifferAreNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{m: filesModel(t), odd: func(body []byte) bool { return strings.Contains(string(body), "weather") }}
		r, told := filesResolver(t, c)
		defer r.Close()
		q := filesQuery(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"hello"}]}`)
		_, err := r.Engine(context.Background(), q, []worker.Endpoint{{}})
		require.NoError(t, err)
		synctest.Wait()
		require.Len(t, *told, 2)
		require.Equal(t, Standing{Model: "m", Engine: worker.VLLM, State: Exact}, (*told)[0])
		require.Equal(t, Differs, (*told)[1].State)
		require.Contains(t, (*told)[1].Why, "tools: the engine has ")
		q = filesQuery(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"another"}]}`)
		_, ok := r.Fast(q, new(Scratch))
		require.False(t, ok)
	})
}

// TestFilesAreOutOfUseOnceAnEngineCountsOthers, for ever.
func TestFilesAreOutOfUseOnceAnEngineCountsOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{m: filesModel(t)}
		r, told := filesResolver(t, c)
		defer r.Close()
		q := filesQuery(t, openai.Completions, `{"model":"m","prompt":"first"}`)
		_, err := r.Engine(context.Background(), q, []worker.Endpoint{{}})
		require.NoError(t, err)
		synctest.Wait()
		q = filesQuery(t, openai.Completions, `{"model":"m","prompt":"another"}`)
		p, ok := r.Fast(q, new(Scratch))
		require.True(t, ok)
		p.Claim.Counted(p.ISLTokens)
		_, ok = r.Fast(q, new(Scratch))
		require.True(t, ok)
		p.Claim.Counted(p.ISLTokens + 1)
		_, ok = r.Fast(q, new(Scratch))
		require.False(t, ok)
		require.Equal(t, Standing{Model: "m", Engine: worker.VLLM, State: Differs, Why: "an engine has counted 8 tokens in a prompt of 7"}, (*told)[2])
		<-time.After(2 * trialAgain)
		_, err = r.Engine(context.Background(), filesQuery(t, openai.Completions, `{"model":"m","prompt":"later"}`), []worker.Endpoint{{}})
		require.NoError(t, err)
		synctest.Wait()
		require.Len(t, *told, 3, "it is not tried again")
	})
}

// TestATrialThatNoEngineAnswersIsMadeAgain after a while.
func TestATrialThatNoEngineAnswersIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{m: filesModel(t), down: true}
		r, told := filesResolver(t, c)
		defer r.Close()
		ask := func() {
			_, _ = r.Engine(context.Background(), filesQuery(t, openai.Completions, `{"model":"m","prompt":"first"}`), []worker.Endpoint{{}})
			synctest.Wait()
		}
		ask()
		require.Empty(t, *told)
		c.down = false
		<-time.After(maxSetAside)
		ask()
		require.Len(t, *told, 2)
	})
}

func answered(status int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil
}

// TestOtherFilesAreTriedAnew: a worker may come with other files of its model.
func TestOtherFilesAreTriedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{m: filesModel(t)}
		r, told := filesResolver(t, c)
		defer r.Close()
		from := []worker.Endpoint{{}}
		q := filesQuery(t, openai.Completions, `{"model":"m","prompt":"abcab"}`)
		local := func() bool {
			p, ok := r.Fast(q, new(Scratch))
			return ok && p.Source == FromLocal
		}
		try := func() {
			q := filesQuery(t, openai.Completions, fmt.Sprintf(`{"model":"m","prompt":"ask %d"}`, c.count()))
			_, err := r.Engine(context.Background(), q, from)
			require.NoError(t, err)
			synctest.Wait()
		}
		try()
		require.True(t, local())
		r.Use("m", nil)
		try()
		require.False(t, local(), "there are none")
		r.Use("m", filesModel(t))
		require.False(t, local(), "these have not been tried")
		try()
		require.True(t, local())
		require.Len(t, *told, 4)
	})
}

// TestCallersAreTheEngines: two engines that are one program render alike, and share what is known
// of the files.
func TestCallersAreTheEngines(t *testing.T) {
	require.Equal(t, "vllm", CallerOf(worker.VLLM).Name)
	require.Same(t, CallerOf(worker.VLLM), CallerOf(worker.VLLMMooncake))
	require.Equal(t, "sglang", CallerOf(worker.SGLang).Name)
	for _, none := range []worker.Engine{worker.TensorRTLLM, "", "another"} {
		require.Nil(t, CallerOf(none), none)
	}
}
