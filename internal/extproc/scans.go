package extproc

import (
	"sync"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// scanPool lends the machines memory for results of scans, which is used again. Safe for
// concurrent use; the zero value is ready.
type scanPool struct{ pool sync.Pool }

func (p *scanPool) Borrow() *openai.Request {
	if r, ok := p.pool.Get().(*openai.Request); ok {
		return r
	}
	return new(openai.Request)
}

func (p *scanPool) Return(r *openai.Request) { p.pool.Put(r) }
