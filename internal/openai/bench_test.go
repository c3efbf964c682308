package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// benchBodies are the shapes that the scan is measured on.
func benchBodies() map[string][]byte {
	const line = `She said: \"the quick brown fox\" jumps over the lazy dog, again and again, until evening.\nThen `
	chat := func(messages, size int) []byte {
		var b strings.Builder
		b.WriteString(`{"model":"meta-llama/Llama-3.1-8B-Instruct","stream":true,"max_tokens":256,"temperature":0.7,"messages":[`)
		for i := range messages {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, `{"role": %q, "content": "%s"}`, []string{"user", "assistant"}[i%2], strings.Repeat(line, size/messages/len(line)))
		}
		b.WriteString(`]}`)
		return []byte(b.String())
	}
	ids := make([]uint32, 40000)
	for i := range ids {
		ids[i] = uint32(i * 2654435761 % 128000)
	}
	idBody, _ := json.Marshal(map[string]any{"model": "m", "prompt": ids})
	return map[string][]byte{
		"220KB one long text":        []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("the quick brown fox jumps ", 220<<10/26) + `"}]}`),
		"220KB 200 messages escapes": chat(200, 220<<10),
		"2KB chat":                   chat(4, 2<<10),
		"220KB token ids":            idBody,
	}
}

func benchPath(name string) Path {
	if strings.HasSuffix(name, "ids") {
		return Completions
	}
	return ChatCompletions
}

func BenchmarkScan(b *testing.B) {
	for name, body := range benchBodies() {
		b.Run(name, func(b *testing.B) {
			var r Request
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := Scan(benchPath(name), body, &r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkVisitPrompt(b *testing.B) {
	for name, body := range benchBodies() {
		b.Run(name, func(b *testing.B) {
			var r Request
			require.NoError(b, Scan(benchPath(name), body, &r))
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				VisitPrompt(body, &r, func(_ PieceKind, p []byte) { n += len(p) })
			}
		})
	}
}

func BenchmarkValidOfEncodingJSON(b *testing.B) {
	for name, body := range benchBodies() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				json.Valid(body)
			}
		})
	}
}

// BenchmarkLaterEvents has a piece as vLLM sends it, and what was read of it before.
func BenchmarkLaterEvents(b *testing.B) {
	piece := []byte(`data: {"id":"chatcmpl-8a1d2f0c9b7e4f6a","object":"chat.completion.chunk","created":1764500000,"model":"meta-llama/Llama-3.1-8B-Instruct",` +
		`"choices":[{"index":0,"delta":{"content":" the"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n")
	b.Run("finish reason alone", func(b *testing.B) {
		for b.Loop() {
			FindFinish(piece)
		}
	})
	for name, p := range map[string][]byte{"events": piece, "events that are cut": piece[:len(piece)-9]} {
		b.Run(name, func(b *testing.B) {
			var l LaterEvents
			b.ReportAllocs()
			for b.Loop() {
				l.Failed(p, true)
			}
		})
	}
}

func TestTheHotPathAllocatesNothing(t *testing.T) {
	members := []byte(`"bootstrap_host":"10.0.0.5","bootstrap_port":8998,"bootstrap_room":1`)
	var r Request
	for name, body := range benchBodies() {
		t.Run(name, func(t *testing.T) {
			dst := make([]byte, 0, len(body)+1000)
			ids := make([]uint32, 0, 50000)
			zero := func(what string, fn func()) {
				t.Helper()
				require.Zero(t, testing.AllocsPerRun(20, fn), what)
			}
			zero("scan", func() { require.NoError(t, Scan(benchPath(name), body, &r)) })
			zero("inject", func() { dst = AppendInjected(dst[:0], body, &r, members) })
			zero("inject in place", func() {
				dst = append(dst[:0], body...)
				s := r
				dst = InjectInPlace(dst, &s, members)
			})
			zero("edit", func() {
				dst = AppendEdited(dst[:0], body, &r, Edit{Stream, []byte("false")}, Edit{MaxTokens, members[60:61]}, Edit{StreamOptions, nil})
			})
			n := 0
			zero("visit", func() { VisitPrompt(body, &r, func(_ PieceKind, p []byte) { n += len(p) }) })
			if r.PromptKind == PromptIDs {
				zero("ids", func() { ids, _ = AppendTokenIDs(ids[:0], body, r.Value(r.PromptField)) })
			}
		})
	}
	escaped := []byte(`{"\u006dodel":"a\u0062c","prompt":"x","cache_salt":"\n"}`)
	require.Zero(t, testing.AllocsPerRun(20, func() { _ = Scan(Completions, escaped, &r) }))
	sampling := []byte(`{"text":"x","sampling_params":{"n":1,"max_new_tokens":4}}`)
	require.Zero(t, testing.AllocsPerRun(20, func() { _ = Scan(Generate, sampling, &r) }), "sampling parameters")
	answer := []byte(`{"choices":[{"finish_reason":"length"}],"usage":{"a":1},"meta_info":{"finish_reason":{"type":"length"}}}`)
	require.Zero(t, testing.AllocsPerRun(20, func() { _, _ = ScanAnswer(answer) }), "answer")
	var later LaterEvents
	event := []byte(`data: {"id":"a","choices":[{"delta":{"content":"b"},"finish_reason":null}]}`) // which the next piece ends
	require.Zero(t, testing.AllocsPerRun(20, func() { later.Failed(event, true) }), "a piece of an answer")
}

func TestTenMegabytesAreScanned(t *testing.T) {
	body := []byte(`{"model":"m","prompt":"` + strings.Repeat(`a\n`, 10<<20/3) + `"}`)
	var r Request
	require.NoError(t, Scan(Completions, body, &r))
	require.Equal(t, PromptString, r.PromptKind)
	body = bytes.Repeat([]byte("["), 10<<20)
	require.Error(t, Scan(Completions, append([]byte(`{"a":`), body...), &r))
}
