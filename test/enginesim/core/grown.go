package core

import "time"

// grown is how far the answer of an admitted request has come. Blocks for the whole
// answer are set aside at admission, so that no running request must stop for lack of
// room. Engines take blocks as tokens come, and count only those as used. Guarded by
// rank.mu.
type grown struct {
	prompt, output int // tokens that blocks were set aside for
	perToken       time.Duration
	began          time.Time // time of the first token; zero: it is still to come
}

// spare is how many blocks are set aside and not used yet, with page tokens in a block.
func (g *grown) spare(page int, now time.Time) int {
	tokens := 0
	if !g.began.IsZero() {
		tokens = g.output
		if g.perToken > 0 {
			tokens = min(g.output, 1+int(now.Sub(g.began)/g.perToken))
		}
	}
	blocks := func(n int) int { return (n + page - 1) / page }
	return blocks(g.prompt+g.output) - blocks(g.prompt+tokens)
}

// expects notes the tokens that blocks were set aside for.
func (h *hold) expects(prompt, output int) {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	h.grown.prompt, h.grown.output = prompt, output
}

// answers notes the time of every answer's first token.
func answers(items []*Item, start time.Time, perToken time.Duration) {
	for _, it := range items {
		if h := it.Hold; h != nil {
			h.r.mu.Lock()
			h.grown.began, h.grown.perToken = start, perToken
			h.r.mu.Unlock()
		}
	}
}

// usedLocked is how many blocks requests hold and use.
func (r *Rank) usedLocked(now time.Time) int {
	used := r.cache.held()
	for h := range r.holds {
		used -= h.grown.spare(r.cache.page, now)
	}
	return used
}
