package tokens

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func query(t testing.TB, p openai.Path, body string) Query {
	t.Helper()
	q := Query{Key: worker.Key{Model: "m"}, Request: new(openai.Request), Body: []byte(body), BlockSize: 4}
	require.NoError(t, openai.Scan(p, q.Body, q.Request), body)
	return q
}

func newResolver(t testing.TB, cfg Config) *Resolver {
	t.Helper()
	r, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

func chatBody(messages ...string) string {
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[`)
	for i, m := range messages {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":%q,"content":%q}`, []string{"user", "assistant"}[i%2], m)
	}
	b.WriteString(`]}`)
	return b.String()
}

func TestFastReadsTheIdsOfTheRequest(t *testing.T) {
	r := newResolver(t, Config{})
	var s Scratch
	for _, tt := range []struct {
		name string
		path openai.Path
		body string
		isl  int
	}{
		{"one list", openai.Completions, `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}`, 9},
		{"the first of several lists", openai.Completions, `{"model":"m","prompt":[[1,2,3,4,5,6,7,8,9],[7]]}`, 10},
		{"input_ids", openai.Generate, `{"input_ids":[1,2,3,4,5,6,7,8,9],"text":"ignored"}`, 9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, ok := r.Fast(query(t, tt.path, tt.body), &s)
			require.True(t, ok)
			require.Equal(t, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, p.Tokens)
			require.Equal(t, kvindex.AppendLocalHashes(nil, p.Tokens, 4, kvindex.Salt{}.Seed()), p.Hashes)
			require.Len(t, p.Hashes, 2)
			require.Equal(t, tt.isl, p.ISLTokens)
			require.Equal(t, FromRequest, p.Source)
			require.Equal(t, ReasonIDs, p.Reason)
			require.False(t, p.Estimated)
		})
	}
	t.Run("salts separate equal ids", func(t *testing.T) {
		q := query(t, openai.Completions, `{"model":"m","prompt":[1,2,3,4]}`)
		q.Salt = kvindex.Salt{LoRA: "l", CacheSalt: "a"}
		p, ok := r.Fast(q, &s)
		require.True(t, ok)
		require.Equal(t, kvindex.AppendLocalHashes(nil, []uint32{1, 2, 3, 4}, 4, q.Salt.Seed()), p.Hashes)
		require.NotEqual(t, kvindex.AppendLocalHashes(nil, []uint32{1, 2, 3, 4}, 4, kvindex.Salt{}.Seed()), p.Hashes)
	})
	t.Run("an id out of range leaves the length", func(t *testing.T) {
		p, ok := r.Fast(query(t, openai.Completions, `{"model":"m","prompt":[1,4294967296]}`), &s)
		require.True(t, ok)
		require.Equal(t, Prompt{ISLTokens: 2, Reason: ReasonBadIDs}, p)
	})
	t.Run("no block size, no hashes", func(t *testing.T) {
		q := query(t, openai.Completions, `{"model":"m","prompt":[1,2]}`)
		q.BlockSize = 0
		p, ok := r.Fast(q, &s)
		require.True(t, ok)
		require.Empty(t, p.Hashes)
		require.Equal(t, 2, p.ISLTokens)
	})
}

func TestFastAnswersAccordingToTheMode(t *testing.T) {
	text := `{"model":"m","prompt":"0123456789"}`
	var s Scratch
	for _, tt := range []struct {
		name   string
		cfg    Config
		body   string
		want   bool
		source Source
		reason Reason
		isl    int
	}{
		{"auto wants a tokenizer", Config{}, text, false, None, "", 0},
		{"estimate does not", Config{Mode: EstimateOnly}, text, true, Estimate, ReasonMode, 3},
		{"estimate still reads ids", Config{Mode: EstimateOnly}, `{"model":"m","prompt":[1]}`, true, FromRequest, ReasonIDs, 1},
		{"off gives the length of texts", Config{Mode: Off}, text, true, None, ReasonOff, 3},
		{"off counts ids", Config{Mode: Off}, `{"model":"m","prompt":[[1,2],[3]]}`, true, None, ReasonOff, 3},
		{"a large prompt is not sent", Config{MaxTokenizeBytes: 11}, text, true, Estimate, ReasonTooLarge, 3},
		{"one at the limit is", Config{MaxTokenizeBytes: 12}, text, false, None, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, ok := newResolver(t, tt.cfg).Fast(query(t, openai.Completions, tt.body), &s)
			require.Equal(t, tt.want, ok)
			require.Equal(t, tt.source, p.Source)
			require.Equal(t, tt.reason, p.Reason)
			require.Equal(t, tt.isl, p.ISLTokens)
		})
	}
	p, ok := newResolver(t, Config{}).Fast(query(t, openai.Generate, `{"input_embeds":[[0.5]]}`), &s)
	require.True(t, ok)
	require.Equal(t, Prompt{Reason: ReasonNoText}, p)
}

func TestEstimate(t *testing.T) {
	r := newResolver(t, Config{})
	est := func(q Query) Prompt {
		p := r.Estimate(q, new(Scratch), ReasonMode)
		require.True(t, p.Estimated)
		require.Equal(t, Estimate, p.Source)
		require.Nil(t, p.Tokens)
		return p
	}
	long := strings.Repeat("tell me of the sea and the stars ", 20)
	t.Run("a conversation that goes on begins with the hashes so far", func(t *testing.T) {
		a := est(query(t, openai.ChatCompletions, chatBody(long)))
		b := est(query(t, openai.ChatCompletions, chatBody(long, "gladly: "+long, "and then?")))
		require.NotEmpty(t, a.Hashes)
		require.Greater(t, len(b.Hashes), len(a.Hashes))
		require.Equal(t, a.Hashes, b.Hashes[:len(a.Hashes)])
		require.Greater(t, b.ISLTokens, a.ISLTokens)
	})
	t.Run("white space and the order of keys do not show", func(t *testing.T) {
		a := est(query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"`+long+`"}]}`))
		b := est(query(t, openai.ChatCompletions, `{ "messages": [ {"content":"`+long+`" , "role":"user"} ] , "stream":true,"model":"m"}`))
		require.Equal(t, a, b)
	})
	t.Run("another first message is another chain from there on", func(t *testing.T) {
		a := est(query(t, openai.ChatCompletions, chatBody("x"+long)))
		b := est(query(t, openai.ChatCompletions, chatBody("y"+long)))
		require.NotEqual(t, a.Hashes[0], b.Hashes[0])
	})
	t.Run("where a piece ends shows", func(t *testing.T) {
		a := est(query(t, openai.Completions, `{"model":"m","prompt":["aaaabbbbccccddd`+long+`"]}`))
		b := est(query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"aaaa","content":"bbbbccccddd`+long+`"}]}`))
		require.NotEqual(t, a.Hashes, b.Hashes)
	})
	t.Run("salts separate equal texts", func(t *testing.T) {
		a := est(query(t, openai.Completions, `{"model":"m","prompt":"`+long+`"}`))
		salted := query(t, openai.Completions, `{"model":"m","prompt":"`+long+`"}`)
		salted.Salt.CacheSalt = "x"
		b := est(salted)
		require.NotEqual(t, a.Hashes[0], b.Hashes[0])
	})
	t.Run("of several prompts the first is hashed and all are counted", func(t *testing.T) {
		a := est(query(t, openai.Completions, `{"model":"m","prompt":"`+long+`"}`))
		b := est(query(t, openai.Completions, `{"model":"m","prompt":["`+long+`","`+long+`"]}`))
		require.Equal(t, a.Hashes, b.Hashes)
		require.Equal(t, 2*len(long)/4, b.ISLTokens)
	})
	t.Run("a picture counts as one, however long its data", func(t *testing.T) {
		with := func(data string) Prompt {
			return est(query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"`+data+`"}},{"type":"text","text":"`+long+`"}]}]}`))
		}
		a, b := with("data:"+strings.Repeat("A", 10000)), with("data:"+strings.Repeat("A", 9999)+"B")
		require.Equal(t, a.ISLTokens, b.ISLTokens)
		require.Less(t, a.ISLTokens, 1000)
		require.NotEqual(t, a.Hashes[0], b.Hashes[0], "the picture is in the first run of blocks")
	})
	t.Run("the chain has a longest length", func(t *testing.T) {
		r := newResolver(t, Config{MaxBlocks: 3})
		q := query(t, openai.Completions, `{"model":"m","prompt":"`+long+`"}`)
		require.Equal(t, est(q).Hashes[:3], r.Estimate(q, new(Scratch), ReasonMode).Hashes)
		p, _ := r.Fast(query(t, openai.Completions, `{"model":"m","prompt":[1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4]}`), new(Scratch))
		require.Len(t, p.Hashes, 3)
	})
}

// The pieces of a text must hash as the whole text does, however it is cut.
func TestTheEstimatorDoesNotSeeWhereItIsFed(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdefg"), 40)
	for blockBytes := 1; blockBytes < 70; blockBytes += 3 {
		want := kvindex.AppendByteHashes(nil, text, blockBytes, 7)
		for step := 1; step < 200; step += 13 {
			var e estimator
			e.reset(blockBytes, 4, 1<<20, 7, false)
			for rest := text; len(rest) > 0; {
				n := min(step, len(rest))
				e.add(rest[:n])
				rest = rest[n:]
			}
			require.Equal(t, want, e.hashes, "blocks of %d fed by %d", blockBytes, step)
		}
	}
}

func TestConfigIsRefused(t *testing.T) {
	_, err := New(Config{Mode: "exact", Wait: -1, CacheEntries: -1, TokenizePath: "tokenize", RenderPath: "render", Pictures: "some"})
	require.ErrorContains(t, err, `pictures "some"`)
	require.ErrorContains(t, err, `render_path "render"`)
	require.ErrorContains(t, err, `mode "exact"`)
	require.ErrorContains(t, err, "wait")
	require.ErrorContains(t, err, "cache_entries")
	require.ErrorContains(t, err, `tokenize_path "tokenize"`)
	require.NoError(t, Config{}.Validate())
}

func TestTheCacheKeepsToItsBounds(t *testing.T) {
	key := func(i int) cacheKey { return cacheKey{Lo: uint64(i)} }
	entryOf := func(i, tokens int) *entry { return &entry{key: key(i), tokens: make([]uint32, tokens)} }
	t.Run("entries", func(t *testing.T) {
		c := newCache(2, 1<<20)
		c.put(entryOf(1, 1))
		c.put(entryOf(2, 1))
		require.NotNil(t, c.get(key(1))) // now entry 2 was used longest ago
		c.put(entryOf(3, 1))
		require.Nil(t, c.get(key(2)))
		require.NotNil(t, c.get(key(1)))
		require.NotNil(t, c.get(key(3)))
	})
	t.Run("bytes", func(t *testing.T) {
		c := newCache(100, 3*(entryOverhead+400))
		held := func() (n int) {
			for i := range 10 {
				if c.get(key(i)) != nil {
					n++
				}
			}
			return n
		}
		for i := range 10 {
			c.put(entryOf(i, 100))
		}
		require.Equal(t, 3, held())
		require.Equal(t, 3*(entryOverhead+400), c.bytes)
		c.put(entryOf(99, 1000))
		require.Nil(t, c.get(key(99)))
		require.Equal(t, 3, held())
	})
	t.Run("time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCache(2, 1<<20)
			e := entryOf(1, 1)
			e.until = time.Now().Add(maxSetAside)
			c.put(e)
			<-time.After(maxSetAside)
			require.Equal(t, e, c.get(key(1)))
			<-time.After(time.Second)
			require.Nil(t, c.get(key(1)))
			require.Zero(t, c.bytes)
			c.put(entryOf(1, 1))
			require.NotNil(t, c.get(key(1)), "its place is free")
		})
	})
	t.Run("the same key again changes nothing", func(t *testing.T) {
		c := newCache(2, 1<<20)
		c.put(entryOf(1, 1))
		before := c.bytes
		c.put(entryOf(1, 50))
		require.Equal(t, before, c.bytes)
	})
}

func TestKeysDifferWithWhatThePromptDependsOn(t *testing.T) {
	chat := func(s string) Query {
		return query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"x"}]`+s+`}`)
	}
	cut := func(s string) Query {
		q := chat(s)
		q.Renders = true
		return q
	}
	block := chat("")
	block.BlockSize = 8
	eagle := chat("")
	eagle.Eagle = true
	model, namespace, salt, lora := chat(""), chat(""), chat(""), chat("")
	salt.Salt.CacheSalt, lora.Salt.LoRA = "s", "s"
	model.Key.Model, namespace.Key.Namespace = "m2", "n"
	seen := map[cacheKey]int{}
	for i, q := range []Query{chat(""), chat(`,"tools":[{}]`), chat(`,"tool_choice":[{}]`), chat(`,"chat_template_kwargs":{"a":1}`),
		chat(`,"mm_processor_kwargs":{"a":1}`), chat(`,"media_io_kwargs":{"a":1}`), chat(`,"chat_template":"x"`), chat(`,"documents":[]`), chat(`,"add_special_tokens":true`),
		cut(""), cut(`,"truncate_prompt_tokens":5`), cut(`,"truncate_prompt_tokens":6`), cut(`,"truncate_prompt_tokens":5,"truncation_side":"left"`),
		cut(`,"truncate_prompt_tokens":5,"truncation_side":"right"`), cut(`,"truncate_prompt_tokens":-1,"max_tokens":5`), cut(`,"truncate_prompt_tokens":-1,"max_completion_tokens":5`),
		salt, lora, block, eagle, model, namespace,
		query(t, openai.Completions, `{"model":"m","prompt":"x"}`), query(t, openai.Generate, `{"text":"x"}`)} {
		k := q.key(q.hashing())
		prev, dup := seen[k]
		require.False(t, dup, "%d and %d", prev, i)
		seen[k] = i
	}
	a, b := chat(""), chat(`,"temperature":0.5,"stream":true`)
	require.Equal(t, a.key(a.hashing()), b.key(b.hashing()))
	a, b = chat(""), chat(`,"truncate_prompt_tokens":5`)
	require.Equal(t, a.key(a.hashing()), b.key(b.hashing()), "an engine that cuts nothing")
	a, b = cut(""), cut(`,"truncate_prompt_tokens":null,"truncation_side":"left","max_tokens":5`)
	require.Equal(t, a.key(a.hashing()), b.key(b.hashing()), "nothing is cut")
}

func TestTheSteadyStateAllocatesNothing(t *testing.T) {
	long := strings.Repeat("tell me of the sea and the stars ", 100)
	r := newResolver(t, Config{Mode: EstimateOnly})
	auto := newResolver(t, Config{})
	q := query(t, openai.ChatCompletions, chatBody(long, long, long))
	ids := query(t, openai.Completions, `{"model":"m","prompt":[`+strings.Repeat("1,2,3,4,", 1000)+`5]}`)
	e := &entry{key: q.key(q.hashing()), tokens: []uint32{1}}
	auto.cache.put(e)
	var s Scratch
	require.Zero(t, testing.AllocsPerRun(20, func() { r.Estimate(q, &s, ReasonMode) }), "estimate")
	require.Zero(t, testing.AllocsPerRun(20, func() { r.Fast(q, &s) }), "fast, estimate")
	require.Zero(t, testing.AllocsPerRun(20, func() { r.Fast(ids, &s) }), "fast, ids")
	require.Zero(t, testing.AllocsPerRun(20, func() {
		if p, ok := auto.Fast(q, &s); !ok || !p.Cached {
			t.Fatal("expected the cached prompt")
		}
	}), "fast, cached")
}

func BenchmarkFast(b *testing.B) {
	long := strings.Repeat("the quick brown fox jumps ", 220<<10/26)
	for name, cfg := range map[string]Config{"estimate": {Mode: EstimateOnly}, "cache miss": {}} {
		b.Run(name+" 220KB", func(b *testing.B) {
			r := newResolver(b, cfg)
			q := query(b, openai.ChatCompletions, chatBody(long))
			q.BlockSize = 16
			var s Scratch
			b.SetBytes(int64(len(q.Body)))
			b.ReportAllocs()
			for b.Loop() {
				r.Fast(q, &s)
			}
		})
	}
}
