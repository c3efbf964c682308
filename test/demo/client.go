package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/test/enginesim"
)

// message is one turn of a chat, as OpenAI's API has it.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// promptTokens returns the token ids that a worker makes of the messages.
func promptTokens(messages []message) []uint32 {
	in := make([]enginesim.Message, len(messages))
	for i, m := range messages {
		in[i] = enginesim.Message(m)
	}
	return enginesim.ChatTokens(in, true)
}

// expected returns the only right answer to the messages.
func expected(messages []message, tokens int) string {
	return enginesim.Answer(promptTokens(messages), tokens)
}

// chatBody returns the body of a streamed chat request. user is OpenAI's field
// of that name; workers show it in their logs.
func chatBody(user string, messages []message, tokens int) ([]byte, error) {
	b, err := json.Marshal(struct {
		Model         string          `json:"model"`
		User          string          `json:"user"`
		Messages      []message       `json:"messages"`
		MaxTokens     int             `json:"max_tokens"`
		Stream        bool            `json:"stream"`
		StreamOptions map[string]bool `json:"stream_options"`
	}{model, user, messages, tokens, true, map[string]bool{"include_usage": true}})
	if err != nil {
		return nil, fmt.Errorf("encode a request: %w", err)
	}
	return b, nil
}

// answer is what the client got.
type answer struct {
	text         string
	promptTokens int
	cachedTokens int
	explained    string // the x-baton-decision header
	firstToken   time.Duration
	took         time.Duration
	at           time.Time // when it was sent
}

// refusal is an answer that is an error of the plugin's, in OpenAI's shape.
type refusal struct {
	status     int
	code       string
	message    string
	retryAfter string // seconds; empty: the client is not told to try again
}

func (r *refusal) Error() string {
	return fmt.Sprintf("refused with status %d, %s: %s", r.status, r.code, r.message)
}

// refused reads an answer that is not a 200.
func refused(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return fmt.Errorf("status %d: %w", resp.StatusCode, err)
	}
	var doc struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(text, &doc) != nil || doc.Error.Code == "" {
		return fmt.Errorf("status %d, without a code: %q", resp.StatusCode, text)
	}
	return &refusal{resp.StatusCode, doc.Error.Code, doc.Error.Message, resp.Header.Get("Retry-After")}
}

// ask sends one streamed chat request to Envoy and reads the answer to its end.
// user is the body's field of that name. The error may be a *refusal.
func ask(ctx context.Context, url, user string, messages []message, tokens int) (*answer, error) {
	body, err := chatBody(user, messages, tokens)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Debug-Decision", "1")
	a := &answer{at: time.Now()}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", user, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("request %s: %w", user, refused(resp))
	}
	a.explained = resp.Header.Get("X-Baton-Decision")
	if err := a.read(resp.Body); err != nil {
		return nil, fmt.Errorf("request %s: %w", user, err)
	}
	a.took = time.Since(a.at)
	return a, nil
}

// read takes the events of a streamed answer. A stream without its end mark is
// an error: the answer was cut. It reads beyond the mark to the stream's end:
// who closes before that has, as Envoy sees it, gone in the middle.
func (a *answer) read(r io.Reader) error {
	var text strings.Builder
	whole := false
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			whole = true
			continue
		}
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
			Usage   *struct {
				PromptTokens int `json:"prompt_tokens"`
				Details      struct {
					CachedTokens int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
			Error json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return fmt.Errorf("an event of the answer: %w", err)
		}
		if chunk.Error != nil {
			return fmt.Errorf("an error in the answer: %s", chunk.Error)
		}
		for _, c := range chunk.Choices {
			if c.Delta.Content != "" && text.Len() == 0 {
				a.firstToken = time.Since(a.at)
			}
			text.WriteString(c.Delta.Content)
		}
		if chunk.Usage != nil {
			a.promptTokens, a.cachedTokens = chunk.Usage.PromptTokens, chunk.Usage.Details.CachedTokens
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the answer was cut: %w", err)
	}
	if !whole {
		return fmt.Errorf("the answer was cut after %q", text.String())
	}
	a.text = text.String()
	return nil
}
