package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// traceBlock is the number of tokens that each hash id of the trace stands for.
const traceBlock = 512

// prompt is one request of the trace.
type prompt struct {
	at     time.Duration // after the first one
	tokens int
	chain  []kvindex.LocalHash // of its whole blocks
	tail   kvindex.LocalHash   // of what comes after them; 0: nothing
}

// reusable returns how many leading blocks can be taken from a cache: engines
// compute the last token whatever is cached, and with it its whole block.
func (p *prompt) reusable() int { return min(len(p.chain), (p.tokens-1)/traceBlock) }

// readTrace reads a trace, at most limit requests of it; 0 means all. rate
// makes them arrive that many times as fast.
func readTrace(r io.Reader, limit int, rate float64) ([]prompt, error) {
	var out []prompt
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	first := 0.0
	for n := 1; lines.Scan() && (limit == 0 || len(out) < limit); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var l struct {
			Timestamp float64  `json:"timestamp"` // ms
			Tokens    int      `json:"input_length"`
			Hashes    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		whole := l.Tokens / traceBlock
		if l.Tokens < 1 || len(l.Hashes) < whole {
			return nil, fmt.Errorf("line %d: input_length %d with %d hash_ids: expected tokens, and a hash for each %d of them",
				n, l.Tokens, len(l.Hashes), traceBlock)
		}
		if len(out) == 0 {
			first = l.Timestamp
		}
		p := prompt{at: time.Duration((l.Timestamp - first) / rate * float64(time.Millisecond)), tokens: l.Tokens}
		// Engines share whole blocks only, so the last one of a prompt, which
		// is in part another's, is left off.
		for _, h := range l.Hashes[:whole] {
			p.chain = append(p.chain, kvindex.LocalHash(h+1))
		}
		if whole < len(l.Hashes) {
			p.tail = kvindex.LocalHash(l.Hashes[whole] + 1)
		}
		out = append(out, p)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.New("no requests: expected a JSON object a line")
	}
	if !slices.IsSortedFunc(out, func(a, b prompt) int { return int(a.at - b.at) }) {
		return nil, errors.New("timestamps: expected them in order")
	}
	return out, nil
}

// spread lets requests of one timestamp arrive one after the other, evenly until
// the next timestamp: the published trace tells times in steps of 3 s.
func spread(trace []prompt) {
	step := time.Duration(0)
	for i := 0; i < len(trace); {
		n := i + 1
		for n < len(trace) && trace[n].at == trace[i].at {
			n++
		}
		if n < len(trace) {
			step = trace[n].at - trace[i].at
		}
		for k := i + 1; k < n; k++ {
			trace[k].at += step * time.Duration(k-i) / time.Duration(n-i)
		}
		i = n
	}
}

// bound returns the hit rate of one cache that forgets nothing, which no
// routing can pass.
func bound(trace []prompt) float64 {
	seen := map[kvindex.LocalHash]bool{}
	hits, tokens := 0, 0
	for i := range trace {
		tokens += trace[i].tokens
		for _, h := range trace[i].chain[:trace[i].reusable()] {
			if !seen[h] {
				break
			}
			hits += traceBlock
		}
		for _, h := range trace[i].chain {
			seen[h] = true
		}
	}
	return float64(hits) / float64(tokens)
}
