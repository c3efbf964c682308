package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Plan is what is to become of an answer.
type Plan struct {
	Ask       []byte // the next request, or nil
	End       []byte // what is missing at the end, if there is nothing to ask
	ID        string // of the events that were delivered
	Created   string
	Delivered int // tokens that were delivered, and are prompt of the next request
	Replaced  int // of the tokens that were made: these are made again, since their text had not come
}

// Refused says why an answer cannot go on.
type Refused struct{ Why string }

func (r Refused) Error() string { return r.Why }

func refuse(format string, args ...any) error { return Refused{fmt.Sprintf(format, args...)} }

// event is what is read of an event, of completions and of chats.
type event struct {
	ID      string      `json:"id"`
	Created json.Number `json:"created"`
	Choices []struct {
		Index int    `json:"index"`
		Text  string `json:"text"`
		Delta *struct {
			Content   string          `json:"content"`
			Reasoning string          `json:"reasoning"`
			ReasonOld string          `json:"reasoning_content"`
			ToolCalls json.RawMessage `json:"tool_calls"`
		} `json:"delta"`
		FinishReason *string  `json:"finish_reason"`
		TokenIDs     []uint32 `json:"token_ids"`
		PromptIDs    []uint32 `json:"prompt_token_ids"`
	} `json:"choices"`
	Model     json.RawMessage `json:"model"`
	PromptIDs []uint32        `json:"prompt_token_ids"` // of chats
	Usage     json.RawMessage `json:"usage"`
	Error     json.RawMessage `json:"error"`
}

// said is what the delivered events say.
type said struct {
	first  event
	ids    []uint32
	prompt []uint32
	text   string
	sure   int // ids whose text has come
	finish bool
	usage  bool
	last   []byte // the last event with a choice
}

func set(v json.RawMessage) bool {
	s := string(bytes.TrimSpace(v))
	return s != "" && s != "null" && s != "false" && s != "0" && s != "0.0" && s != "[]" && s != "{}" && s != `""`
}

func read(delivered []byte) (said, error) {
	var s said
	for line := range bytes.SplitSeq(delivered, []byte("\n")) {
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok || len(data) == 0 || string(data) == "[DONE]" {
			continue
		}
		var e event
		if err := json.Unmarshal(data, &e); err != nil {
			return s, refuse("an event cannot be read")
		}
		if set(e.Error) {
			return s, refuse("the answer has an error")
		}
		if s.first.ID == "" {
			s.first = e
		}
		s.usage = s.usage || (len(e.Choices) == 0 && set(e.Usage))
		if len(s.prompt) == 0 {
			s.prompt = e.PromptIDs
		}
		if err := s.add(e, data); err != nil {
			return s, err
		}
	}
	if s.first.ID == "" {
		return s, refuse("no event was delivered")
	}
	return s, nil
}

func (s *said) add(e event, data []byte) error {
	for _, c := range e.Choices {
		if c.Index != 0 {
			return refuse("several choices")
		}
		text := c.Text
		if c.Delta != nil {
			text = c.Delta.Content
			if set(c.Delta.ToolCalls) || c.Delta.Reasoning != "" || c.Delta.ReasonOld != "" {
				return refuse("tool calls or reasoning in the answer")
			}
		}
		if len(s.prompt) == 0 {
			s.prompt = c.PromptIDs
		}
		if text != "" && len(c.TokenIDs) == 0 {
			return refuse("text without token ids")
		}
		s.ids = append(s.ids, c.TokenIDs...)
		s.text += text
		if text != "" && !strings.HasSuffix(text, "\uFFFD") {
			s.sure = len(s.ids)
		}
		s.finish = s.finish || c.FinishReason != nil
		s.last = data
	}
	return nil
}

// forbidden are members whose effect ends or changes where an answer is cut in two.
var forbidden = []string{
	"logprobs", "top_logprobs", "prompt_logprobs", "echo", "suffix", "best_of", "use_beam_search",
	"response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar",
	"tools", "functions", "stop", "stop_token_ids", "min_tokens", "presence_penalty", "frequency_penalty",
	"truncate_prompt_tokens", "bad_words", "thinking_token_budget", "stream_interval",
}

// For makes the plan.
func For(path string, request, delivered []byte) (Plan, error) {
	var req map[string]json.RawMessage
	if err := json.Unmarshal(request, &req); err != nil {
		return Plan{}, refuse("the request cannot be read")
	}
	for _, name := range forbidden {
		if set(req[name]) {
			return Plan{}, refuse("%s", name)
		}
	}
	for _, name := range []string{"logprobs", "prompt_logprobs"} { // 0 asks for those of the tokens themselves
		if string(bytes.TrimSpace(req[name])) == "0" {
			return Plan{}, refuse("%s", name)
		}
	}
	if n := string(req["n"]); n != "" && n != "1" && n != "null" {
		return Plan{}, refuse("n")
	}
	s, err := read(delivered)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{ID: s.first.ID, Created: string(s.first.Created)}
	if s.finish {
		p.End, err = ending(req, s)
		return p, err
	}
	if len(s.prompt) == 0 {
		return Plan{}, refuse("the prompt's token ids are not known")
	}
	p.Delivered, p.Replaced = s.sure, len(s.ids)-s.sure
	if err := shorten(req, strings.HasPrefix(path, "/v1/chat/"), p.Delivered); err != nil {
		return Plan{}, err
	}
	if !strings.HasPrefix(path, "/v1/chat/") {
		req["prompt"], _ = json.Marshal(append(s.prompt[:len(s.prompt):len(s.prompt)], s.ids[:s.sure]...))
	} else if err := prolong(req, s.text); err != nil {
		return Plan{}, err
	}
	if p.Ask, err = json.Marshal(req); err != nil {
		return Plan{}, refuse("the request cannot be written")
	}
	return p, nil
}

// shorten takes what was delivered from what may be generated.
func shorten(req map[string]json.RawMessage, chat bool, delivered int) error {
	names := []string{"max_tokens", "max_completion_tokens"}
	limited := false
	for _, name := range names {
		if !set(req[name]) {
			continue
		}
		var limit int
		if err := json.Unmarshal(req[name], &limit); err != nil {
			return refuse("%s", name)
		}
		if limit -= delivered; limit < 1 {
			return refuse("no room under %s", name)
		}
		limited = true
		req[name], _ = json.Marshal(limit)
	}
	if !limited && !chat {
		return refuse("no max_tokens") // the engine's default would count anew
	}
	return nil
}

// prolong makes the delivered text the beginning of the next answer.
func prolong(req map[string]json.RawMessage, text string) error {
	if set(req["continue_final_message"]) || strings.Contains(string(req["chat_template_kwargs"]), "thinking") {
		return refuse("the chat's own continuation")
	}
	var messages []json.RawMessage
	if err := json.Unmarshal(req["messages"], &messages); err != nil {
		return refuse("messages")
	}
	m, _ := json.Marshal(map[string]string{"role": "assistant", "content": text})
	req["messages"], _ = json.Marshal(append(messages, m))
	req["add_generation_prompt"], req["continue_final_message"] = []byte("false"), []byte("true")
	return nil
}

// ending is what the client still lacks of an answer whose finish reason it has.
func ending(req map[string]json.RawMessage, s said) ([]byte, error) {
	var options struct {
		IncludeUsage bool `json:"include_usage"`
	}
	if set(req["stream_options"]) {
		if err := json.Unmarshal(req["stream_options"], &options); err != nil {
			return nil, refuse("stream_options")
		}
	}
	var b bytes.Buffer
	if options.IncludeUsage && !s.usage {
		if len(s.prompt) == 0 || len(s.ids) == 0 {
			return nil, refuse("usage without token ids")
		}
		var last map[string]json.RawMessage
		_ = json.Unmarshal(s.last, &last)
		usage, _ := json.Marshal(struct {
			ID      json.RawMessage `json:"id"`
			Object  json.RawMessage `json:"object"`
			Created json.RawMessage `json:"created"`
			Model   json.RawMessage `json:"model"`
			Choices []int           `json:"choices"`
			Usage   map[string]int  `json:"usage"`
		}{last["id"], last["object"], last["created"], last["model"], []int{}, map[string]int{
			"prompt_tokens": len(s.prompt), "completion_tokens": len(s.ids), "total_tokens": len(s.prompt) + len(s.ids)}})
		fmt.Fprintf(&b, "data: %s\n\n", usage)
	}
	b.WriteString("data: [DONE]\n\n")
	return b.Bytes(), nil
}
