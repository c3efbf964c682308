package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// TraceBlock is the number of tokens that each hash of a published trace stands for.
const TraceBlock = 512

// ParseTrace reads a trace in Mooncake's form, a JSON object a line, at most limit requests of
// it; 0 means all. rate makes them arrive that many times as fast.
func ParseTrace(text []byte, limit int, rate float64) (*Workload, error) {
	w := &Workload{BlockTokens: TraceBlock}
	first, n := 0.0, 0
	for line := range bytes.Lines(text) {
		n++
		if limit > 0 && len(w.Requests) == limit {
			break
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var l struct {
			Timestamp float64  `json:"timestamp"` // ms
			Tokens    int      `json:"input_length"`
			Answer    int      `json:"output_length"`
			Hashes    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		whole := l.Tokens / TraceBlock
		if l.Tokens < 1 || len(l.Hashes) < whole {
			return nil, fmt.Errorf("line %d: input_length %d with %d hash_ids: expected tokens, and a hash for each %d of them",
				n, l.Tokens, len(l.Hashes), TraceBlock)
		}
		if len(w.Requests) == 0 {
			first = l.Timestamp
		}
		r := Request{At: time.Duration((l.Timestamp - first) / rate * float64(time.Millisecond)), Tokens: l.Tokens, Answer: l.Answer, Session: len(w.Requests)}
		if k := len(w.Requests); k > 0 && r.At < w.Requests[k-1].At {
			return nil, fmt.Errorf("line %d: timestamps: expected them in order", n)
		}
		// Engines share whole blocks only, so the last one of a prompt, which
		// is in part another's, is left off.
		for _, h := range l.Hashes[:whole] {
			r.Blocks = append(r.Blocks, Block(h+1))
		}
		if whole < len(l.Hashes) {
			r.Tail = Block(l.Hashes[whole] + 1)
		}
		w.Requests = append(w.Requests, r)
	}
	if len(w.Requests) == 0 {
		return nil, errors.New("no requests: expected a JSON object a line")
	}
	return w, nil
}
