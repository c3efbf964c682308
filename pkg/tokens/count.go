package tokens

import (
	"context"
	"math"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Count asks the tokenizer at ep how many tokens the prompt of q has, and calls told with the answer
// from another goroutine; 0: it gave none. It returns false, and asks nothing, if the answer would not
// certainly be what the engine counts, or if the body is longer than 64 KiB. It keeps no reference to
// the body.
func (r *Resolver) Count(q Query, ep worker.Endpoint, told func(tokens int)) bool {
	if r.cfg.Mode != Auto || len(q.Body) > sampleBytes || !r.counts(&q) {
		return false
	}
	question := tokenizeBody(&q)
	return r.begin(func() {
		n := 0
		defer func() { told(n) }()
		to, ok := choose([]*asides{r.asides}, []worker.Endpoint{ep}, sampleAsked)
		if !ok {
			return
		}
		ctx, cancel := context.WithTimeout(r.life, sampleAsked)
		defer cancel()
		e, err := r.ask(ctx, to.ep, question)
		to.heard(err, false)
		if err == nil && (q.MaxModelLen == 0 || e.isl < q.MaxModelLen) {
			n = e.isl
		}
	})
}

// counts reports whether an engine counts as many tokens of q's prompt as its tokenizer tells.
func (r *Resolver) counts(q *Query) bool {
	return tokenizeTells(q) && !q.Request.Given(q.Body, openai.AddSpecialTokens) && q.keeps() == math.MaxInt &&
		q.page == "" && q.made.path == 0 && !q.odd && !q.unread() && r.mediaOf(q).parts == 0
}
