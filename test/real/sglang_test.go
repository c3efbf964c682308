//go:build real

package real

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSGLangConversations: its radix cache, its events and its tokenizer, on one worker.
func TestSGLangConversations(t *testing.T) {
	s := newScene(t, compared, "sglang-1")
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
				fields{"model": "tiny", "messages": history, "max_tokens": 8, "stream": c%2 == 0, "temperature": 0})
			all = append(all, x)
		}
	}
	requireAgreement(t, sglang, "aggregated: conversations, 3 × 3 turns", all, 0.99)
}

// TestSGLangOverlapOfAdaptersAndSalts: what keeps the blocks of equal tokens apart, in each
// way in which it is named.
func TestSGLangOverlapOfAdaptersAndSalts(t *testing.T) {
	s := newScene(t, compared, "sglang-lora")
	for what, spaces := range map[string][]fields{
		"LoRA adapters, as base:adapter and lora_path": {{"model": "tiny"}, {"model": "tiny:adapter"}, {"model": "tiny", "lora_path": "adapter"}, {"model": "adapter"}},
		"cache_salt": {{"model": "tiny", "cache_salt": "a"}, {"model": "tiny", "cache_salt": "b"}, {"model": "tiny:adapter", "cache_salt": "a"}},
	} {
		t.Run(what, func(t *testing.T) {
			var all []told
			for i := range 4 * len(spaces) {
				body := fields{"prompt": what + words(uint64(i/(2*len(spaces))), 200) + fmt.Sprint(i), "max_tokens": 4}
				maps.Copy(body, spaces[i%len(spaces)])
				_, x := s.compare(fmt.Sprint(spaces[i%len(spaces)]), "/v1/completions", body)
				all = append(all, x)
			}
			requireAgreement(t, sglang, "aggregated: "+what, all, 0.99)
		})
	}
}

// TestSGLangApart: the two halves meet at its own bootstrap server.
func TestSGLangApart(t *testing.T) {
	s := newScene(t, compared, "sglang-p1", "sglang-d1")
	var all []told
	for i := range 12 {
		path, body := "/v1/completions", fields{"prompt": words(uint64(i/3), 200) + fmt.Sprint(i)}
		if i%3 == 0 {
			path, body = "/v1/chat/completions", fields{"messages": []fields{message("user", words(uint64(i/3), 200)+fmt.Sprint(i))}}
		}
		body["model"], body["max_tokens"], body["stream"] = "tiny", 6, i%2 == 0
		_, x := s.compare("text", path, body)
		d := s.last()
		require.NotNil(t, d.Prefill, "served apart")
		require.Equal(t, x.prompt, x.isl)
		all = append(all, x)
	}
	requireAgreement(t, sglang, "apart (NIXL over TCP, its bootstrap server), 1 + 1", all, 0.99)
}
