//go:build real

package real

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// told is one request's overlap, as Baton predicted it and as the engine counted it.
type told struct {
	what              string
	predicted, cached int // tokens
	isl, prompt       int
	samples           int // n of the request
}

// agrees reports whether the two say the same. Of several samples vLLM counts for the
// last, which finds all blocks that the first has just computed, but for the one that
// ends the prompt.
func (x *told) agrees() bool {
	again := x.samples > 1 && x.cached == (x.prompt-1)/BlockSize*BlockSize
	return (x.predicted == x.cached || again && x.predicted <= x.cached) && x.isl == x.prompt
}

// compare sends a request and compares its decision with the engine's usage.
func (s *scene) compare(what, path string, body fields) (*answer, told) {
	s.t.Helper()
	if body["stream"] == true {
		body["stream_options"] = fields{"include_usage": true}
	}
	a := s.ask(path, body)
	require.Equal(s.t, http.StatusOK, a.status, "%s: %s", what, a.body)
	d := s.last()
	c := d.Decode
	if d.Prefill != nil {
		c = d.Prefill
	}
	x := told{what: what, predicted: c.Overlap * BlockSize, isl: d.ISL, prompt: a.usage.Prompt}
	x.samples, _ = body["n"].(int)
	if a.usage.Details != nil {
		x.cached = a.usage.Details.Cached
	}
	s.heard()
	return a, x
}

// words makes text of so many words, the same for the same seed.
func words(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "%s ", []string{"prefill", "decode", "worker", "block", "cache", "index", "route", "stream", "token", "engine"}[r.IntN(10)])
	}
	return b.String()
}

func message(role, content string) fields { return fields{"role": role, "content": content} }

// TestVLLMConversations: three conversations of three turns on two workers, plain and
// streamed. What Baton predicts is what the engine counts.
func TestVLLMConversations(t *testing.T) {
	s := newScene(t, compared, "vllm-1", "vllm-2")
	var all []told
	for turn := range 3 {
		for c := range 3 {
			history := []fields{message("system", words(uint64(c), 150))}
			for i := range turn + 1 {
				history = append(history, message("user", words(uint64(100+10*c+i), 60)))
				if i < turn {
					history = append(history, message("assistant", words(uint64(200+10*c+i), 40)))
				}
			}
			_, x := s.compare(fmt.Sprintf("conversation %d, turn %d", c, turn), "/v1/chat/completions",
				fields{"model": "qwen3", "messages": history, "max_tokens": 8, "stream": c%2 == 0, "temperature": 0})
			if turn > 0 {
				require.Positive(t, x.cached, x.what)
			}
			all = append(all, x)
		}
	}
	requireAgreement(t, vllm, "aggregated: conversations, 3 × 3 turns, 2 workers", all, 1)
}

// kinds are ways to say a prompt. Each gets a document, whose beginning others have had,
// and a number that makes the request its own.
var kinds = map[string]func(doc uint64, n int) (path string, body fields){
	"text": func(doc uint64, n int) (string, fields) {
		return "/v1/completions", fields{"prompt": words(doc, 350) + fmt.Sprint(n)}
	},
	"token ids": func(doc uint64, n int) (string, fields) {
		r, ids := rand.New(rand.NewPCG(doc, 2)), make([]int, 0, 500)
		for range 480 {
			ids = append(ids, 1000+r.IntN(50_000))
		}
		return "/v1/completions", fields{"prompt": append(ids, 1000+n)}
	},
	"n=2": func(doc uint64, n int) (string, fields) {
		return "/v1/completions", fields{"prompt": words(doc, 350) + fmt.Sprint("twice ", n), "n": 2, "temperature": 1}
	},
	"chat": func(doc uint64, n int) (string, fields) {
		return "/v1/chat/completions", fields{"messages": []fields{message("user", words(doc, 350)+fmt.Sprint(n))}}
	},
	"system prompt": func(doc uint64, n int) (string, fields) {
		return "/v1/chat/completions", fields{"messages": []fields{message("system", words(doc, 350)), message("user", fmt.Sprint("and now ", n))}}
	},
	"tools": func(doc uint64, n int) (string, fields) {
		tool := fields{"type": "function", "function": fields{"name": "look_up", "description": words(doc, 200), "parameters": fields{
			"type": "object", "properties": fields{"what": fields{"type": "string"}}, "required": []string{"what"},
		}}}
		return "/v1/chat/completions", fields{"messages": []fields{message("user", words(doc+1000, 150)+fmt.Sprint(n))}, "tools": []fields{tool}}
	},
}

// TestVLLMOverlapWithEvictions: 200 requests of all kinds, over more documents than the
// two workers can hold.
func TestVLLMOverlapWithEvictions(t *testing.T) {
	s := newScene(t, compared, "vllm-1", "vllm-2")
	r := rand.New(rand.NewPCG(14, 2))
	names := slices.Sorted(maps.Keys(kinds))
	var all []told
	for i := range 200 {
		kind := names[i%len(names)]
		path, body := kinds[kind](uint64(r.IntN(16)), i)
		body["model"], body["max_tokens"], body["stream"] = "qwen3", 4, i%3 == 0
		_, x := s.compare(kind, path, body)
		all = append(all, x)
	}
	computed := 0
	for i := range all {
		computed += all[i].prompt - all[i].cached
	}
	require.Greater(t, computed, 2*2*256*BlockSize, "twice what both can hold")
	requireAgreement(t, vllm, "aggregated: 200 requests of six kinds, with evictions, 2 workers", all, 0.99)
}

// TestVLLMOverlapOfASlidingWindow: a model that keeps some layers' KV for a window only.
func TestVLLMOverlapOfASlidingWindow(t *testing.T) {
	s := newScene(t, compared, "sliding")
	r := rand.New(rand.NewPCG(14, 3))
	var all []told
	for i := range 40 {
		_, x := s.compare("text", "/v1/completions", fields{
			"model": "sliding", "prompt": words(uint64(r.IntN(6)), 300) + fmt.Sprint(i), "max_tokens": 4, "stream": i%2 == 0,
		})
		all = append(all, x)
	}
	requireAgreement(t, vllm, "aggregated: a model with sliding-window layers", all, 0.99)
}

// TestVLLMOverlapOfAdaptersAndSalts: what else goes into the hash of a block.
func TestVLLMOverlapOfAdaptersAndSalts(t *testing.T) {
	s := newScene(t, compared, "lora")
	for what, change := range map[string]func(body fields, i int){
		"LoRA adapters": func(body fields, i int) { body["model"] = []string{"tiny", "adapter"}[i%2] },
		"cache_salt":    func(body fields, i int) { body["cache_salt"] = []string{"a", "b"}[i%2] },
		"lists of prompts": func(body fields, i int) {
			body["prompt"] = []string{body["prompt"].(string), words(uint64(900+i%2), 100)}
		},
	} {
		t.Run(what, func(t *testing.T) {
			var all []told
			for i := range 12 {
				body := fields{"model": "tiny", "prompt": what + words(uint64(i/4), 200) + fmt.Sprint(i), "max_tokens": 4}
				change(body, i)
				before := s.sources(worker.Aggregated)
				_, x := s.compare(what, "/v1/completions", body)
				if what == "lists of prompts" {
					// The decision is made for the first prompt of a list, the engine's usage has
					// what the last one found. Its counters have both.
					x.cached = int(s.sources(worker.Aggregated).less(before).cached) - x.cached
				}
				all = append(all, x)
			}
			requireAgreement(t, vllm, "aggregated: "+what, all, 0.99)
		})
	}
}

// requireAgreement holds that in so many of the requests, as a share, Baton and the
// engine say the same, and tells where they do not.
func requireAgreement(t *testing.T, engine, what string, all []told, share float64) {
	t.Helper()
	agree, cached, prompt := 0, 0, 0
	for i := range all {
		x := &all[i]
		cached, prompt = cached+x.cached, prompt+x.prompt
		if x.agrees() {
			agree++
		} else {
			t.Logf("%d, %s: predicted %d of %d tokens, the engine: %d of %d", i, x.what, x.predicted, x.isl, x.cached, x.prompt)
		}
	}
	tellf(t, engine, what, "what Baton predicted is what the engine counted in %d of %d; %d of %d prompt tokens were cached", agree, len(all), cached, prompt)
	require.GreaterOrEqual(t, float64(agree), share*float64(len(all)), what)
}
