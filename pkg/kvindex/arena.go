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

// pageBytes is the size of page that memory is given back in; elsewhere none is.
const pageBytes = 4096

// giveBack lets the system have the memory of values that begin and end with a
// page. They are zero afterwards. It reports false if the system does not take
// it.
func giveBack[T any](s []T) bool {
	var zero T
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero)))
	return discard(b)
}

// marks is a set of numbers that knows its size.
type marks struct {
	words []uint64
	n     int
}

func (m *marks) has(i uint32) bool {
	w := int(i / 64)
	return w < len(m.words) && m.words[w]>>(i%64)&1 != 0
}

func (m *marks) add(i uint32) {
	for int(i/64) >= len(m.words) {
		m.words = append(m.words, 0)
	}
	if !m.has(i) {
		m.words[i/64] |= 1 << (i % 64)
		m.n++
	}
}

func (m *marks) drop(i uint32) {
	if m.has(i) {
		m.words[i/64] &^= 1 << (i % 64)
		m.n--
	}
}

// pool hands out numbers of an arena's values, from 1: the one freed last, else
// one whose memory was given back, else a new one.
type pool struct {
	next uint32
	free []uint32
	cold []uint32 // free, and without memory
}

func (p *pool) get() uint32 {
	if n := len(p.free); n > 0 {
		id := p.free[n-1]
		p.free = p.free[:n-1]
		return id
	}
	if n := len(p.cold); n > 0 {
		id := p.cold[n-1]
		p.cold = p.cold[:n-1]
		return id
	}
	p.next++
	return p.next
}

func (p *pool) put(id uint32) { p.free = append(p.free, id) }

// used returns how many numbers are out.
func (p *pool) used() int { return int(p.next) - len(p.free) - len(p.cold) }
