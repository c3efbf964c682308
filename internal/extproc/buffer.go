package extproc

import (
	"math/bits"
	"sync"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// bufferPool lends byte slices for bodies that are rewritten or put together.
// A body of 220 KB that is allocated anew costs more in zeroing and collecting
// than in all that is done with it. Safe for concurrent use.
//
// The codec reads bodies into its buffers; whoever holds one passes it on,
// lends it to gRPC to be sent, or puts it back. One that is forgotten is left
// to the collector. So is one over largestPooled: such are rare, would be rounded up
// by megabytes, and would be kept when nobody needs them.
type bufferPool struct {
	classes [9]sync.Pool // by power of two, from 4 KiB to largestPooled; of *[]byte

	joining sync.Mutex // held while a body is there twice; see gather
}

const (
	smallestClass = 12
	largestPooled = 1 << 20
)

func classOf(n int) int { return max(bits.Len(uint(max(n, 1)-1)), smallestClass) - smallestClass }

// get returns an empty slice with room for n bytes.
func (p *bufferPool) get(n int) []byte {
	c := classOf(n)
	if c >= len(p.classes) {
		return make([]byte, 0, n)
	}
	if b, ok := p.classes[c].Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, 1<<(c+smallestClass))
}

// put takes a buffer of get back. It does nothing with any other slice.
func (p *bufferPool) put(b []byte) {
	c := classOf(cap(b))
	if cap(b) == 0 || c >= len(p.classes) || cap(b) != 1<<(c+smallestClass) {
		return
	}
	p.classes[c].Put(&b)
}

// requests lends scan results, which are large for their lives.
var requests = sync.Pool{New: func() any { return new(openai.Request) }}
