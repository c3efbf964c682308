package openai

import "sync"

// Pool lends memory for the results of scans, which is used again: they are large, and needed for
// a short time. Safe for concurrent use; the zero value is ready.
type Pool struct{ free sync.Pool }

// Borrow returns a Request with any content, to be filled by a scan.
func (p *Pool) Borrow() *Request {
	if r, ok := p.free.Get().(*Request); ok {
		return r
	}
	return new(Request)
}

// Return takes back what Borrow has lent.
func (p *Pool) Return(r *Request) { p.free.Put(r) }
