package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// MaxDepth is how deep a body may nest, its own object included.
const MaxDepth = 512

// The functions of this file take the offset at which they begin, and return the offset
// at which they stop. A negative result r means a fault at the offset ^r. They never read
// beyond b.

// skipSpace returns the offset of the first byte that is not white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) {
		switch b[i] {
		case ' ', '\t', '\n', '\r':
			i++
		default:
			return i
		}
	}
	return i
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// stopMask sets the high bit of each byte of w that ends a run of plain string bytes: a
// quote, a backslash or a control character. Only the lowest such bit is reliable, since
// borrows travel upward.
//
// Flipping bit 1 turns the quote (0x22) into 0x20 and leaves control characters below
// 0x20: then one comparison with 0x21 finds both.
func stopMask(w uint64) uint64 {
	low := (w ^ 2*ones) - 0x21*ones
	backslash := (w ^ '\\'*ones) - ones
	return (low | backslash) &^ w & highs
}

// skipString takes the offset after an opening quote and returns the one after the
// closing quote.
func skipString(b []byte, i int) int {
	for {
		i = nextStop(b, i)
		if i >= len(b) {
			return ^len(b)
		}
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i = skipEscape(b, i)
			if i < 0 {
				return i
			}
		default:
			return ^i
		}
	}
}

// nextStop returns the offset of the next quote, backslash or control character, or
// len(b). It reads four words at a time to have few branches.
func nextStop(b []byte, i int) int {
	for i+32 <= len(b) {
		p := b[i : i+32 : i+32]
		m0 := stopMask(binary.LittleEndian.Uint64(p))
		m1 := stopMask(binary.LittleEndian.Uint64(p[8:]))
		m2 := stopMask(binary.LittleEndian.Uint64(p[16:]))
		m3 := stopMask(binary.LittleEndian.Uint64(p[24:]))
		if m0|m1|m2|m3 == 0 {
			i += 32
			continue
		}
		switch {
		case m0 != 0:
			return i + bits.TrailingZeros64(m0)>>3
		case m1 != 0:
			return i + 8 + bits.TrailingZeros64(m1)>>3
		case m2 != 0:
			return i + 16 + bits.TrailingZeros64(m2)>>3
		default:
			return i + 24 + bits.TrailingZeros64(m3)>>3
		}
	}
	for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// skipEscape takes the offset of a backslash and returns the one after the escape.
func skipEscape(b []byte, i int) int {
	if i+1 >= len(b) {
		return ^len(b)
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		for k := i + 2; k < i+6; k++ {
			if k >= len(b) {
				return ^len(b)
			}
			if !isHex(b[k]) {
				return ^k
			}
		}
		return i + 6
	default:
		return ^(i + 1)
	}
}

func isHex(c byte) bool {
	return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// skipDigits returns the offset of the first byte that is not a digit.
func skipDigits(b []byte, i int) int {
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	return i
}

// skipNumber takes the offset of a minus sign or a digit.
func skipNumber(b []byte, i int) int {
	if b[i] == '-' {
		i++
	}
	if i >= len(b) || !isDigit(b[i]) {
		return ^i
	}
	if b[i] == '0' {
		i++
	} else {
		i = skipDigits(b, i)
	}
	if i < len(b) && b[i] == '.' {
		i++
		if i >= len(b) || !isDigit(b[i]) {
			return ^i
		}
		i = skipDigits(b, i)
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if i >= len(b) || !isDigit(b[i]) {
			return ^i
		}
		i = skipDigits(b, i)
	}
	return i
}

func skipLiteral(b []byte, i int, lit string) int {
	if len(b)-i < len(lit) || string(b[i:i+len(lit)]) != lit {
		return ^i
	}
	return i + len(lit)
}

// skipScalar skips a value that is neither an array nor an object.
func skipScalar(b []byte, i int) int {
	if i >= len(b) {
		return ^i
	}
	switch c := b[i]; c {
	case '"':
		return skipString(b, i+1)
	case 't':
		return skipLiteral(b, i, "true")
	case 'f':
		return skipLiteral(b, i, "false")
	case 'n':
		return skipLiteral(b, i, "null")
	default:
		if c == '-' || isDigit(c) {
			return skipNumber(b, i)
		}
		return ^i
	}
}

// skipNumbers takes the offset of an array's first element. If all elements look like
// token ids, it returns the offset after the array, else 0. Prompts and block ids are
// long lists of such numbers.
func skipNumbers(b []byte, i int) int {
	if i >= len(b) || !isDigit(b[i]) {
		return 0
	}
	end, _ := skipIDs(b, i-1)
	return max(end, 0)
}

// skipKey takes the offset of a member's key and returns the one of its value.
func skipKey(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return ^i
	}
	i = skipString(b, i+1)
	if i < 0 {
		return i
	}
	i = skipSpace(b, i)
	if i >= len(b) || b[i] != ':' {
		return ^i
	}
	return skipSpace(b, i+1)
}

// skipValue takes the offset of a value's first byte and checks the value to its end.
// depth is how many arrays and objects are open around it.
func skipValue(b []byte, i, depth int) int {
	if i < len(b) && b[i] != '{' && b[i] != '[' {
		return skipScalar(b, i)
	}
	n := nest{depth: depth}
	for {
		more := false // at a value that has to be checked
		switch {
		case i >= len(b):
			return ^i
		case b[i] == '{' || b[i] == '[':
			i, more = n.open(b, i)
		default:
			i = skipScalar(b, i)
		}
		if i >= 0 && !more {
			i, more = n.close(b, i, depth)
		}
		if i < 0 || !more {
			return i
		}
	}
}

// nest is which arrays and objects are open.
type nest struct {
	objects [MaxDepth/64 + 1]uint64 // a bit for each depth: set for an object
	depth   int
}

// open takes the offset of an opening bracket. more means that it stops at a value inside;
// else it stops behind the closing bracket, since there was nothing but numbers.
func (n *nest) open(b []byte, i int) (end int, more bool) {
	c := b[i]
	if n.depth >= MaxDepth {
		return ^i, false
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == c+2 { // ']' and '}' are two after '[' and '{'
		return i + 1, false
	}
	if c == '[' {
		if end := skipNumbers(b, i); end > 0 {
			return end, false
		}
	}
	n.depth++
	bit := uint64(1) << (n.depth & 63)
	if c == '[' {
		n.objects[n.depth>>6] &^= bit
		return i, true
	}
	n.objects[n.depth>>6] |= bit
	return skipKey(b, i), true
}

// close takes the offset after a value, and closes the arrays and objects that end there.
// more means that it stops at their next value; else only base of them are open.
func (n *nest) close(b []byte, i, base int) (end int, more bool) {
	for n.depth > base {
		i = skipSpace(b, i)
		if i >= len(b) {
			return ^i, false
		}
		object := n.objects[n.depth>>6]>>(n.depth&63)&1 != 0
		if b[i] == ',' {
			i = skipSpace(b, i+1)
			if object {
				i = skipKey(b, i)
			}
			return i, true
		}
		if object != (b[i] == '}') || !object && b[i] != ']' {
			return ^i, false
		}
		n.depth--
		i++
	}
	return i, false
}

// skipValid is skipValue for a value that has been checked before.
func skipValid(b []byte, i int) int {
	depth := 0
	for {
		switch b[i] {
		case '"':
			i = skipValidString(b, i+1)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		default:
			i++
			for i < len(b) && b[i] > ' ' && b[i] != ',' && b[i] != '}' && b[i] != ']' && b[i] != '"' &&
				b[i] != '{' && b[i] != '[' {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

// skipValidString is skipString for a string that has been checked before.
func skipValidString(b []byte, i int) int {
	start := i
	for {
		k := bytes.IndexByte(b[i:], '"')
		if k < 0 {
			return len(b)
		}
		i += k
		n := i
		for n > start && b[n-1] == '\\' {
			n--
		}
		i++
		if (i-1-n)&1 == 0 {
			return i
		}
	}
}
