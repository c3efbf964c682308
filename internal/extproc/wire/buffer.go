package wire

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Pool lends byte slices for bodies that are rewritten or put together. A body of 220 KB
// that is allocated anew costs more in zeroing and collecting than in all that is done
// with it. Safe for concurrent use; the zero value is ready.
//
// The codec reads bodies into its buffers; whoever holds one passes it on, has it sent
// in a reply, or returns it. One that is forgotten is left to the collector. So is one
// over LargestPooled: such are rare, would be rounded up by megabytes, and would be kept
// when nobody needs them.
type Pool struct {
	classes [9]sync.Pool // by power of two, from 4 KiB to LargestPooled; of *[]byte
}

// LargestPooled is the size of the largest buffer that is kept.
const LargestPooled = 1 << 20

const smallestClass = 12

func classOf(n int) int { return max(bits.Len(uint(max(n, 1)-1)), smallestClass) - smallestClass }

// Borrow returns an empty slice with room for n bytes.
func (p *Pool) Borrow(n int) []byte {
	c := classOf(n)
	if c >= len(p.classes) {
		return make([]byte, 0, n)
	}
	if b, ok := p.classes[c].Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, 1<<(c+smallestClass))
}

// Return takes a buffer of Borrow back. It does nothing with any other slice.
func (p *Pool) Return(b []byte) {
	c := classOf(cap(b))
	if cap(b) == 0 || c >= len(p.classes) || cap(b) != 1<<(c+smallestClass) {
		return
	}
	p.classes[c].Put(&b)
}

// Get and Put make the pool one of gRPC's kind.
func (p *Pool) Get(n int) *[]byte {
	b := p.Borrow(n)[:n]
	return &b
}

// Put takes a buffer back from gRPC.
func (p *Pool) Put(b *[]byte) { p.Return(*b) }

// lend hands a body to gRPC, which gives it back when it is sent. A body that is not of
// the pool is left to the collector.
func (p *Pool) lend(body []byte) mem.Buffer {
	if len(body) == 0 {
		return mem.SliceBuffer(nil)
	}
	return mem.NewBuffer(&body, p)
}
