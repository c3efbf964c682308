package kvindex

import "unsafe"

// arena is zeroed memory for n values of T, at an address that never changes. T must
// hold no pointers. The system provides a page when it is first written, so that
// reserved memory costs nothing.
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

// pageBytes is the page size that giveBack needs. On systems with another, nothing is
// given back.
const pageBytes = 4096

// giveBack gives the memory of the values, which must be whole pages, back to the
// system. They are zero afterwards. False means that the system keeps the memory as it
// is.
func giveBack[T any](s []T) bool {
	var zero T
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero)))
	return discard(b)
}

// marks is a set of numbers, with its size in n.
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

// pool hands out indexes of an arena's values, from 1. It prefers the one that was
// freed last, then one whose memory was given back, then a new one.
type pool struct {
	next uint32
	free []uint32
	cold []uint32 // free, and their memory was given back
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

// used returns how many indexes are handed out.
func (p *pool) used() int { return int(p.next) - len(p.free) - len(p.cold) }
