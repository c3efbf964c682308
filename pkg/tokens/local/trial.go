package local

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
)

// Trial is one request by which a model's files are compared with its engines.
type Trial struct {
	Name string // what it tries
	Path openai.Path
	Body []byte
}

// Chat reports whether the trial has messages.
func (t *Trial) Chat() bool { return t.Path == openai.ChatCompletions }

// Trials returns the trials, in order: first prompts of text, then conversations.
func Trials() []Trial {
	var out []Trial
	for _, x := range texts() {
		out = append(out, Trial{x[0], openai.Completions, mustJSON(object{"model": "m", "prompt": x[1]})})
	}
	for _, c := range chats() {
		body := object{"model": "m", "messages": c.messages}
		maps.Copy(body, c.beside)
		out = append(out, Trial{c.name, openai.ChatCompletions, mustJSON(body)})
	}
	return out
}

type object = map[string]any

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // of constants
	}
	return b
}

// texts are names and texts: scripts, emoji, white space, digits, code, and what looks like
// a special token.
func texts() [][2]string {
	return [][2]string{
		{"plain text", "The quick brown fox doesn't jump; it's 3.14 metres, isn't it?"},
		{"scripts", "Grüße an Łódź. Привет, мир! שלום عالم 你好，世界。こんにちは 안녕하세요 नमस्ते ไทย"},
		{"emoji", "👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️ ☺ e\u0301 \u1e9b\u0323 ﬁ ²"},
		{"white space", "  two\n\n\n three\t\ttabs \r\n \u00a0\u3000end  "},
		{"digits", "0 12 345 6789 01234567890 1,000,000.00 ٣٤٥ ½"},
		{"code", "func f(x []int) (n int) {\n\tfor _, v := range x {\n\t\tn += v // sum\n\t}\n\treturn\n}\n"},
		{"special tokens' names", "<s></s><|im_start|>user<|im_end|><|endoftext|><|eot_id|><think></think><unk><bos> <｜begin▁of▁sentence｜>"},
		{"one letter", "a"},
		{"a line break", "\n"},
	}
}

type conversation struct {
	name     string
	messages []object
	beside   object
}

func said(role, text string) object { return object{"role": role, "content": text} }

func chats() []conversation {
	call := object{"role": "assistant", "content": "", "tool_calls": []object{{
		"id": "call_0001a", "type": "function", "function": object{"name": "weather", "arguments": `{"city":"Łódź","days":2}`},
	}}}
	tool := object{"type": "function", "function": object{
		"name": "weather", "description": "The weather of a city", "parameters": object{
			"type": "object", "properties": object{"city": object{"type": "string"}, "days": object{"type": "integer"}}, "required": []string{"city"},
		},
	}}
	two := []object{said("user", "Hello"), said("assistant", "Hello! How can I help?"), said("user", "  Say it\n\nin French. ")}
	thought := object{"role": "assistant", "content": "Four.", "reasoning_content": "Two and two."}
	return []conversation{
		{"one message", []object{said("user", "Hello, who are you?")}, nil},
		{"three messages", two, nil},
		{"a system message", append([]object{said("system", "Be brief.")}, two...), nil},
		{"parts of content", []object{{"role": "user", "content": []object{{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}}}}, nil},
		{"reasoning", []object{said("user", "2+2?"), thought, said("user", "And 3+3?")}, nil},
		{"tools", []object{said("user", "Rain tomorrow?")}, object{"tools": []object{tool}}},
		{"a tool's answer", []object{said("user", "Rain?"), call, {"role": "tool", "tool_call_id": "call_0001a", "content": "no"}}, object{"tools": []object{tool}}},
		{"no generation prompt", two, object{"add_generation_prompt": false}},
		{"a last message that goes on", two[:2], object{"add_generation_prompt": false, "continue_final_message": true}},
	}
}

// Tokens returns the ids that the model's files give for a trial.
func (m *Model) Tokens(t *Trial, caller *chat.Caller) ([]uint32, error) {
	var r openai.Request
	err := openai.Scan(t.Path, t.Body, &r)
	if err != nil {
		return nil, err
	}
	ids, _, err := m.Append(nil, caller, &r, t.Body)
	return ids, err
}

// Compare compares the ids of a trial, by the model's files and by an engine. It returns ""
// if they are the same, else where they begin to differ.
func (m *Model) Compare(t *Trial, caller *chat.Caller, ours, theirs []uint32) string {
	if slices.Equal(ours, theirs) {
		return ""
	}
	same := 0
	for same < min(len(ours), len(theirs)) && ours[same] == theirs[same] {
		same++
	}
	return fmt.Sprintf("%s: the engine has %d tokens, the files give %d, and they differ from token %d on%s",
		t.Name, len(theirs), len(ours), same, m.place(caller, t, same))
}

// place says near which character of a trial's text the token with index same stands.
func (m *Model) place(caller *chat.Caller, t *Trial, same int) string {
	var r openai.Request
	err := openai.Scan(t.Path, t.Body, &r)
	if err != nil {
		return ""
	}
	pieces, special := []string{}, !t.Chat()
	if t.Chat() {
		p, err := m.render(caller, &r, t.Body)
		if err != nil {
			return ""
		}
		pieces = p.Pieces
	} else {
		openai.VisitPrompt(t.Body, &r, func(kind openai.PieceKind, raw []byte) {
			text, err := unescaped(raw)
			if kind == openai.PieceText && err == nil {
				pieces = append(pieces, string(text))
			}
		})
	}
	text := joined(pieces)
	// The shortest beginning of the text that has the token, or nearly: the last tokens of a
	// beginning may merge with what follows.
	at := sort.Search(len(text), func(n int) bool {
		ids, err := m.encode(nil, text[:n], special)
		return err == nil && len(ids) > same
	})
	where := fmt.Sprintf(", near byte %d of the text", at)
	for i, p := range pieces {
		if at <= len(p) && len(pieces) > 1 {
			return fmt.Sprintf("%s, in its part %d of %d", where, i+1, len(pieces))
		}
		at -= len(p)
	}
	return where
}
