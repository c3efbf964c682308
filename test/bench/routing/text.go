package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
)

// modelName is what the live workers answer to.
const modelName = "sim"

// scale is how the live part differs from the trace.
type scale struct {
	Speedup float64 // of arrivals and of prefill alike
	Page    int     // tokens of a worker's block, which stands for traceBlock; divides it
	// Words are what prompts are made of, each one token of a published tokenizer. The
	// requests are then chats. nil: letters, of which the simulated engines take each word
	// for one token.
	Words []string
}

// shrink returns the trace with the lengths that its prompts have as they are
// sent, in tokens of the trace: what is simulated beside the live part.
func (sc scale) shrink(trace []replay.Request) []replay.Request {
	out := make([]replay.Request, len(trace))
	for i, p := range trace {
		p.Tokens = sc.words(&p) * (traceBlock / sc.Page)
		out[i] = p
	}
	return out
}

// words returns how many tokens a prompt is sent with: a page for each whole
// block, and the same share of what is left.
func (sc scale) words(p *replay.Request) int {
	return max(len(p.Blocks)*sc.Page+p.Tokens%traceBlock*sc.Page/traceBlock, 1)
}

// body returns the request for a prompt. Its text is made of words that follow
// from the trace's hashes: prompts begin alike where the trace says so, and
// nowhere else.
func (sc scale) body(p *replay.Request) []byte {
	n := sc.words(p)
	b := make([]byte, 0, 128+5*n)
	for _, h := range p.Blocks {
		b = sc.appendWords(b, h, sc.Page)
	}
	return sc.request(sc.appendWords(b, p.Tail, n-len(p.Blocks)*sc.Page))
}

// request returns the request for a text, which needs no escapes.
func (sc scale) request(text []byte) []byte {
	before, after := `"prompt":"`, `"`
	if sc.Words != nil {
		before, after = `"messages":[{"role":"user","content":"`, `"}]`
	}
	return fmt.Appendf(nil, `{"model":"%s",%s%s%s,"max_tokens":1,"stream":true,"stream_options":{"include_usage":true}}`, modelName, before, text, after)
}

// warmUps are requests of one word, which fill no block.
func (sc scale) warmUps() [][]byte {
	var out [][]byte
	for i := range warmUps {
		text := fmt.Sprintf(" warm%d", i)
		if sc.Words != nil {
			text = sc.Words[i]
		}
		out = append(out, sc.request([]byte(text)))
	}
	return out
}

// path is where the requests are sent.
func (sc scale) path() string {
	if sc.Words != nil {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// shots returns the requests of a trace with their times.
func (sc scale) shots(trace []replay.Request) []shot {
	out := make([]shot, len(trace))
	for i := range trace {
		out[i] = shot{at: time.Duration(float64(trace[i].At) / sc.Speedup), body: sc.body(&trace[i])}
	}
	return out
}

// appendWords appends the first n words of a block: the block's name in letters,
// so that no two blocks begin alike, then as many bytes a word as tokens of
// English have, 2 to 5 letters and the blank before them. Words of a tokenizer are drawn.
func (sc scale) appendWords(b []byte, h replay.Block, n int) []byte {
	rng := rand.New(rand.NewPCG(uint64(h), 1))
	for i := range n {
		if sc.Words != nil {
			b = append(b, sc.Words[rng.IntN(len(sc.Words))]...)
			continue
		}
		b = append(b, ' ')
		if i == 0 {
			b = strconv.AppendUint(b, uint64(h), 36)
			continue
		}
		for range 2 + rng.IntN(4) {
			b = append(b, byte('a'+rng.IntN(26)))
		}
	}
	return b
}
