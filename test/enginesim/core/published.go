package core

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
)

// Published is a table of requests and their token ids. Another program has made the ids, by a
// tokenizer and a chat template as they are published. A worker that has the table does not
// tokenize: it takes ids from the table, and refuses a request that is not in it.
type Published struct{ of map[promptKey]publishedPrompt }

type publishedPrompt struct {
	Request json.RawMessage // a body, of which those members count that the tokens depend on
	Tokens  []uint32
	Asked   bool // whether POST /tokenize tells the ids; else it answers 503
}

// promptKey identifies what the tokens of a request depend on.
type promptKey [sha256.Size]byte

// ReadPublished reads a file with a JSON object a line: request, tokens, asked.
func ReadPublished(file string) (*Published, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	defer func() { _ = f.Close() }()
	p := &Published{of: make(map[promptKey]publishedPrompt)}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for n := 1; lines.Scan(); n++ {
		var l publishedPrompt
		err := json.Unmarshal(lines.Bytes(), &l)
		if err != nil || len(l.Tokens) == 0 {
			return nil, fmt.Errorf("tokens, line %d: expected request and tokens: %w", n, err)
		}
		k, err := keyOf(l.Request)
		if err != nil {
			return nil, fmt.Errorf("tokens, line %d: %w", n, err)
		}
		l.Request = nil
		p.of[k] = l
	}
	return p, lines.Err()
}

// keyOf reads the members of a request that its tokens depend on.
func keyOf(body []byte) (promptKey, error) {
	names := []string{
		"prompt", "messages", "tools", "documents", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "reasoning_effort", "tool_choice",
	}
	values := make(map[string][]byte)
	if err := EachField(body, func(key string, v []byte) error {
		values[key] = v
		return nil
	}); err != nil {
		return promptKey{}, err
	}
	var all bytes.Buffer
	for _, name := range names {
		v := values[name]
		if IsNull(v) || name == "add_generation_prompt" && string(v) == "true" || name == "continue_final_message" && string(v) == "false" {
			continue // as if it were not there
		}
		fmt.Fprintf(&all, "%s:", name)
		if err := json.Compact(&all, v); err != nil {
			return promptKey{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	return sha256.Sum256(all.Bytes()), nil
}

// find returns the prompt of a body.
func (p *Published) find(body []byte) (publishedPrompt, error) {
	k, err := keyOf(body)
	if err != nil {
		return publishedPrompt{}, RefusalOf(err)
	}
	found, ok := p.of[k]
	if !ok {
		return publishedPrompt{}, BadRequest("the worker has no tokens for this request: --tokens lists none")
	}
	return found, nil
}

// tokenizePublished answers POST /tokenize.
func (p *Pages) tokenizePublished(w http.ResponseWriter, body []byte, as Tokenizing) {
	found, err := p.s.cfg.Published.find(body)
	switch {
	case err != nil:
		p.Refuse(w, RefusalOf(err))
	case !found.Asked:
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		p.writeTokens(w, [][]uint32{found.Tokens}, false, as.More)
	}
}
