package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// model is one fleet: the workers that serve a model.
type model struct {
	Name              string
	Engine            worker.Engine
	Prefills, Decodes int
	Etcd              bool // found in etcd; else in the file
}

// ask is one request and all that its answer is judged by.
type ask struct {
	N       int
	Lane    int
	Model   string
	Path    string
	Body    string
	Want    []string // the text of each choice
	Stream  bool
	Timeout time.Duration // the client's own deadline; 0: the default
	Leave   time.Duration // the client leaves so long after it began; 0: never
	Refusal string        // the code that the request deserves; "" for a good one
}

// String describes it in one line, without its prompt.
func (a *ask) String() string {
	s := fmt.Sprintf("#%d lane %d %s %s %d bytes", a.N, a.Lane, a.Model, a.Path, len(a.Body))
	if len(a.Want) > 1 {
		s += fmt.Sprintf(" n=%d", len(a.Want))
	}
	if a.Stream {
		s += " stream"
	}
	if a.Timeout > 0 {
		s += " deadline " + a.Timeout.String()
	}
	if a.Leave > 0 {
		s += " leaves after " + a.Leave.String()
	}
	if a.Refusal != "" {
		s += " deserves " + a.Refusal
	}
	return s
}

// deadline is when an answer, or an error, must be there.
func (a *ask) deadline() time.Duration {
	if a.Timeout > 0 {
		return a.Timeout
	}
	return defaultTimeout
}

// Every engine answers 500 to a prompt with the word poison in it. Nobody is to be set
// aside for it, however often it comes.
const (
	poison   = "poison"
	poisoned = "a 500 of every engine"
)

// body is what clients send.
type body struct {
	Model     string    `json:"model"`
	Prompt    string    `json:"prompt,omitempty"`
	Messages  []message `json:"messages,omitempty"`
	MaxTokens int       `json:"max_tokens"`
	Stream    bool      `json:"stream,omitempty"`
	N         int       `json:"n,omitempty"`
	Room      int       `json:"bootstrap_room,omitempty"` // forbidden to clients
}

// message is one turn of a chat, as OpenAI's API has it.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// drawAsk draws request n.
func drawAsk(rng *rand.Rand, n int, models []model, lanes int) *ask {
	m := models[rng.IntN(len(models))]
	a := &ask{N: n, Lane: rng.IntN(lanes), Model: m.Name, Stream: rng.IntN(2) == 0}
	b := body{Model: m.Name, Stream: a.Stream, MaxTokens: 1 + rng.IntN(40)}
	if rng.IntN(20) == 0 {
		b.MaxTokens = 100 + rng.IntN(300)
	}
	if rng.IntN(10) == 0 {
		b.N = 2 + rng.IntN(2)
		if m.Engine == worker.SGLang || b.MaxTokens > 1 { // with prefill first, prefill alone serves one token of each
			a.Refusal = "not_disaggregable"
		}
	}
	if rng.IntN(3) == 0 {
		a.Timeout = 300*time.Millisecond + time.Duration(rng.IntN(5000))*time.Millisecond
	}
	if rng.IntN(7) == 0 {
		a.Leave = time.Duration(1+rng.IntN(1500)) * time.Millisecond
		if rng.IntN(2) == 0 {
			a.Leave = time.Duration(1+rng.IntN(40)) * time.Millisecond
		}
	}
	text := drawPrompt(rng, n)
	if a.Refusal == "" && rng.IntN(60) == 0 {
		text, a.Refusal = poison+" "+text, poisoned
	}
	var tokens []uint32
	a.Path = "/v1/completions"
	if rng.IntN(2) == 0 {
		a.Path = "/v1/chat/completions"
		const system = "Answer in a word."
		b.Messages = []message{{"system", system}, {"user", text}}
		tokens = enginesim.ChatTokens([]enginesim.Message{{Role: "system", Content: system}, {Role: "user", Content: text}}, true)
	} else {
		b.Prompt = text
		tokens = enginesim.Tokenize(text)
	}
	for range max(b.N, 1) {
		a.Want = append(a.Want, enginesim.Answer(tokens, b.MaxTokens))
	}
	spoil(rng, a, &b)
	return a
}

// spoil writes the body, which one request in thirty has wrong.
func spoil(rng *rand.Rand, a *ask, b *body) {
	how := rng.IntN(90)
	switch how {
	case 0:
		b.Model, a.Refusal = "nobody-s-model", "model_not_found"
	case 1:
		b.Room, a.Refusal = 7, "forbidden_field"
	}
	text, err := json.Marshal(b)
	if err != nil {
		panic(err) // strings and numbers alone
	}
	a.Body = string(text)
	if how == 2 {
		a.Body, a.Refusal = a.Body[:len(a.Body)-1], "not_json"
	}
}

// drawPrompt returns a prompt that no other request has. Some share their
// beginning, few are long.
func drawPrompt(rng *rand.Rand, n int) string {
	words := 2 + rng.IntN(120)
	if rng.IntN(20) == 0 {
		words = 1000 + rng.IntN(4000)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "talk %d:", rng.IntN(12))
	for i := range words {
		fmt.Fprintf(&b, " word%d", i*7%31)
	}
	fmt.Fprintf(&b, " number %d", n)
	return b.String()
}
