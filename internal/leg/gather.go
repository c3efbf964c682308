package leg

import "github.com/seed-60ae5743/baton/internal/wire"

// gather puts a body together that comes in pieces. It takes memory as bytes come: a size
// that a client announces only spares copies. Its memory is the body's size and a
// sixteenth. While the parts of a body of unknown size are joined, they are in memory
// twice; that is done for one body in the process at a time.
type gather struct {
	announced int      // the body's size, as its headers say; 0: they do not
	size      int      // how many bytes have come
	whole     []byte   // the body in one piece, with room for the announced size; nil: see parts
	parts     [][]byte // what has come, while whole is nil
}

const (
	smallestPart = 64 << 10
	largestPart  = 512 << 10
	// If a body is announced larger than any buffer that the pool keeps, 1/earnest of it
	// has to come before memory is taken for all of it.
	earnest = 32
)

// add copies a piece, and gives its buffer back.
func (g *gather) add(p *wire.Pool, piece []byte) {
	g.size += len(piece)
	if g.whole == nil && g.announced >= g.size && (g.announced <= wire.LargestPooled || g.size >= g.announced/earnest) {
		g.whole = g.join(p, g.announced)
	}
	switch {
	case g.whole != nil && len(g.whole)+len(piece) <= cap(g.whole):
		g.whole = append(g.whole, piece...)
	case g.whole != nil: // more than was announced
		g.parts, g.whole, g.announced = append(g.parts, g.whole), nil, 0
		g.keep(p, piece)
	default:
		g.keep(p, piece)
	}
	p.Return(piece)
}

// keep appends a piece to the parts.
func (g *gather) keep(p *wire.Pool, piece []byte) {
	for len(piece) > 0 {
		if n := len(g.parts); n > 0 && len(g.parts[n-1]) < cap(g.parts[n-1]) {
			last := g.parts[n-1]
			k := min(cap(last)-len(last), len(piece))
			g.parts[n-1], piece = append(last, piece[:k]...), piece[k:]
			continue
		}
		g.parts = append(g.parts, p.Borrow(min(max(g.size, smallestPart), largestPart)))
	}
}

// take returns the body in one piece, with room for what will be injected.
func (g *gather) take(p *wire.Pool) []byte {
	if g.whole == nil {
		p.Alone(func() { g.whole = g.join(p, g.size) })
	}
	b := g.whole
	*g = gather{}
	return b
}

// join copies the parts into one piece with room for n bytes.
func (g *gather) join(p *wire.Pool, n int) []byte {
	b := p.Borrow(n + injectRoom)
	for _, part := range g.parts {
		b = append(b, part...)
		p.Return(part)
	}
	g.parts = nil
	return b
}

// drop gives all buffers back.
func (g *gather) drop(p *wire.Pool) {
	p.Return(g.whole)
	for _, part := range g.parts {
		p.Return(part)
	}
	*g = gather{}
}
