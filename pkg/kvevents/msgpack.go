package kvevents

import (
	"encoding/binary"
	"errors"
)

var errMsgpack = errors.New("kvevents: malformed msgpack")

// reader reads msgpack from b without copying. After a fault every method returns zero
// and err stays set, so that callers check it once at the end.
// https://github.com/msgpack/msgpack/blob/master/spec.md
type reader struct {
	b   []byte
	i   int
	err error
}

func (r *reader) fail() {
	if r.err == nil {
		r.err = errMsgpack
	}
	r.i = len(r.b)
}

func (r *reader) left() int { return len(r.b) - r.i }

// peek returns the next byte and does not move on.
func (r *reader) peek() byte {
	if r.err != nil || r.i >= len(r.b) {
		r.fail()
		return 0xc1 // never used by msgpack
	}
	return r.b[r.i]
}

func (r *reader) byte() byte {
	c := r.peek()
	if r.err == nil {
		r.i++
	}
	return c
}

// take returns the next n bytes as a view into the input.
func (r *reader) take(n uint64) []byte {
	if r.err != nil || n > uint64(r.left()) {
		r.fail()
		return nil
	}
	v := r.b[r.i : r.i+int(n)]
	r.i += int(n)
	return v
}

// uint reads a big-endian number of size bytes.
func (r *reader) uint(size uint64) uint64 {
	v := r.take(size)
	switch len(v) {
	case 1:
		return uint64(v[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(v))
	case 4:
		return uint64(binary.BigEndian.Uint32(v))
	case 8:
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func isArray(c byte) bool  { return c&0xf0 == 0x90 || c == 0xdc || c == 0xdd }
func isMap(c byte) bool    { return c&0xf0 == 0x80 || c == 0xde || c == 0xdf }
func isString(c byte) bool { return c&0xe0 == 0xa0 || c >= 0xd9 && c <= 0xdb }
func isBin(c byte) bool    { return c >= 0xc4 && c <= 0xc6 }
func isNil(c byte) bool    { return c == 0xc0 }
func isFloat(c byte) bool  { return c == 0xca || c == 0xcb }
func isInt(c byte) bool {
	return c < 0x80 || c >= 0xe0 || c >= 0xcc && c <= 0xcf || c >= 0xd0 && c <= 0xd3
}

// nil reports whether the next value is nil, and then moves past it.
func (r *reader) nil() bool {
	if r.err == nil && r.i < len(r.b) && isNil(r.b[r.i]) {
		r.i++
		return true
	}
	return false
}

// array reads an array header and returns the number of elements. Each element has at
// least one byte, so a count above the bytes that are left is a fault: callers may size
// buffers by the count.
func (r *reader) array() int {
	var n uint64
	switch c := r.byte(); {
	case c&0xf0 == 0x90:
		n = uint64(c & 0x0f)
	case c == 0xdc:
		n = r.uint(2)
	case c == 0xdd:
		n = r.uint(4)
	default:
		r.fail()
	}
	return r.count(n)
}

// pairs reads a map header and returns the number of pairs.
func (r *reader) pairs() int {
	var n uint64
	switch c := r.byte(); {
	case c&0xf0 == 0x80:
		n = uint64(c & 0x0f)
	case c == 0xde:
		n = r.uint(2)
	case c == 0xdf:
		n = r.uint(4)
	default:
		r.fail()
	}
	return r.count(2*n) / 2
}

func (r *reader) count(n uint64) int {
	if r.err != nil || n > uint64(r.left()) {
		r.fail()
		return 0
	}
	return int(n)
}

// text reads a string as a view into the input.
func (r *reader) text() []byte {
	switch c := r.byte(); {
	case c&0xe0 == 0xa0:
		return r.take(uint64(c & 0x1f))
	case c >= 0xd9 && c <= 0xdb:
		return r.take(r.uint(1 << (c - 0xd9)))
	}
	r.fail()
	return nil
}

// bin reads a byte string as a view into the input.
func (r *reader) bin() []byte {
	if c := r.byte(); isBin(c) {
		return r.take(r.uint(1 << (c - 0xc4)))
	}
	r.fail()
	return nil
}

// int reads an integer of either sign as its 64 bits. neg says that it is below zero.
func (r *reader) int() (v uint64, neg bool) {
	switch c := r.byte(); {
	case c < 0x80:
		return uint64(c), false
	case c >= 0xe0:
		return uint64(int64(int8(c))), true
	case c >= 0xcc && c <= 0xcf:
		return r.uint(1 << (c - 0xcc)), false
	case c >= 0xd0 && c <= 0xd3:
		size := uint64(1) << (c - 0xd0)
		shift := 64 - 8*size
		s := int64(r.uint(size)<<shift) >> shift
		return uint64(s), s < 0
	}
	r.fail()
	return 0, false
}

// skip moves past one value of any type. It does not recurse, so deep nesting costs no
// stack.
func (r *reader) skip() {
	for pending := 1; pending > 0 && r.err == nil; pending-- {
		switch c := r.peek(); {
		case isArray(c):
			n := r.array()
			pending += n - r.skipInts(n)
		case isMap(c):
			pending += 2 * r.pairs()
		case isString(c):
			r.text()
		case isBin(c):
			r.bin()
		case isInt(c):
			r.int()
		case isFloat(c):
			r.i++
			r.take(4 << (c - 0xca))
		case c == 0xc0 || c == 0xc2 || c == 0xc3:
			r.i++
		case c >= 0xd4 && c <= 0xd8: // fixext
			r.i++
			r.take(1 + uint64(1)<<(c-0xd4))
		case c >= 0xc7 && c <= 0xc9: // ext
			r.i++
			r.take(1 + r.uint(1<<(c-0xc7)))
		default:
			r.fail()
		}
	}
}

// skipInts moves past integers, at most n, up to the first value of another type, and
// returns how many it passed. Nearly all of a payload is token ids, and each is passed
// several times.
func (r *reader) skipInts(n int) int {
	i, b := r.i, r.b
	for k := range n {
		if i >= len(b) {
			r.i = len(b)
			return k // the next read fails
		}
		if i+5 <= len(b) { // nearly all token ids have one of these two forms
			if b[i] == 0xcd {
				i += 3
				continue
			}
			if b[i] == 0xce {
				i += 5
				continue
			}
		}
		size := intSize(b[i])
		if size == 0 || i+size > len(b) {
			r.i = i
			return k
		}
		i += size
	}
	r.i = i
	return n
}

// intSize is how many bytes an integer has whose first byte is c; 0 if c begins no
// integer.
func intSize(c byte) int {
	switch {
	case c < 0x80 || c >= 0xe0:
		return 1
	case c >= 0xcc && c <= 0xcf:
		return 1 + 1<<(c-0xcc)
	case c >= 0xd0 && c <= 0xd3:
		return 1 + 1<<(c-0xd0)
	}
	return 0
}

// value moves past one value and returns its bytes.
func (r *reader) value() []byte {
	from := r.i
	r.skip()
	if r.err != nil {
		return nil
	}
	return r.b[from:r.i]
}
