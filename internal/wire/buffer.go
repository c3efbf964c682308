package wire

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Pool lends byte slices for bodies that are rewritten or assembled. To allocate a body
// of 220 KB anew costs more, in zeroing and garbage collection, than all other work on
// it. Safe for concurrent use; the zero value is ready.
//
// The codec reads bodies into its buffers. The holder of a buffer passes it on, sends it
// in a reply, or returns it. The garbage collector frees a buffer that is not returned,
// and those over LargestPooled: these are rare, would be rounded up by megabytes, and
// would be kept without need.
type Pool struct {
	classes [9]sync.Pool // by power of two, from 4 KiB to LargestPooled; each holds *[]byte
	twice   sync.Mutex   // held while a large body is in memory twice
}

// LargestPooled is the size of the largest buffer that the pool keeps.
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

// Return takes back a buffer that Borrow has made. It ignores any other slice.
func (p *Pool) Return(b []byte) {
	c := classOf(cap(b))
	if cap(b) == 0 || c >= len(p.classes) || cap(b) != 1<<(c+smallestClass) {
		return
	}
	p.classes[c].Put(&b)
}

// Alone runs f, during which a large body is in memory twice, while no other such f runs.
func (p *Pool) Alone(f func()) {
	p.twice.Lock()
	defer p.twice.Unlock()
	f()
}

// Get and Put make the pool a mem.BufferPool of gRPC.
func (p *Pool) Get(n int) *[]byte {
	b := p.Borrow(n)[:n]
	return &b
}

// Put takes a buffer back from gRPC.
func (p *Pool) Put(b *[]byte) { p.Return(*b) }

// lend hands a body to gRPC, which returns it to the pool when it is sent. A body that is
// not a buffer of the pool is left to the garbage collector.
func (p *Pool) lend(body []byte) mem.Buffer {
	if len(body) == 0 {
		return mem.SliceBuffer(nil)
	}
	return mem.NewBuffer(&body, p)
}
