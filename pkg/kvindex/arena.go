package kvindex

import "unsafe"

// arena is memory for n values of T, which holds no pointers, at an address
// that never changes: pages are taken from the system when they are first
// written, so what is reserved costs nothing. Zeroed at first.
type arena[T any] struct {
	all     []T
	release func()
}

// newArena reserves memory for n values.
func newArena[T any](n int, huge bool) (arena[T], error) {
	var zero T
	b, release, err := reserve(n*int(unsafe.Sizeof(zero)), huge)
	if err != nil {
		return arena[T]{}, err
	}
	return arena[T]{
		all:     unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n),
		release: release,
	}, nil
}

// pool hands out numbers of an arena's values, from 1, lowest new one last
// freed first.
type pool struct {
	next uint32
	free []uint32
}

func (p *pool) get() uint32 {
	if n := len(p.free); n > 0 {
		id := p.free[n-1]
		p.free = p.free[:n-1]
		return id
	}
	p.next++
	return p.next
}

func (p *pool) put(id uint32) { p.free = append(p.free, id) }

// used returns how many numbers are out.
func (p *pool) used() int { return int(p.next) - len(p.free) }
