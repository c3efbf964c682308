package bpe

import _ "embed" // for the tables

// class is a set of the properties of characters that the patterns in use ask for.
type class uint8

// The properties, as the regular expressions of tokenizers 0.23.3 have them; see
// testdata/oracle.py, which writes the tables.
const (
	letter class = 1 << iota // \p{L}
	number                   // \p{N}
	space                    // \s
	mark                     // \p{M}
	punct                    // \p{P}
	sign                     // \p{S}
	upper                    // \p{Lu} or \p{Lt}
	lower                    // \p{Ll}
)

// classes tells the class of each character.
type classes struct {
	ascii  [128]class
	pages  [0x110000 >> 8]uint16 // which of blocks has the page
	blocks [][256]class
}

// classRuns are the runs of code points of the same class bits: length, bits.
//
//go:embed tables/classes
var classRuns string

// newClasses reads the runs of the table into pages; equal pages are shared.
func newClasses() *classes {
	c := new(classes)
	var all [256]class
	seen := map[[256]class]uint16{}
	at := 0
	for runs := classRuns; runs != ""; {
		n, rest := varint(runs)
		bits := class(rest[0])
		runs = rest[1:]
		for ; n > 0; n-- {
			all[at&255] = bits
			at++
			if at&255 != 0 {
				continue
			}
			i, ok := seen[all]
			if !ok {
				i = uint16(len(c.blocks))
				seen[all] = i
				c.blocks = append(c.blocks, all)
			}
			c.pages[at>>8-1] = i
		}
	}
	for i := range c.ascii {
		c.ascii[i] = c.of(rune(i))
	}
	return c
}

// of returns the class of a valid character.
func (c *classes) of(r rune) class { return c.blocks[c.pages[r>>8]][r&255] }

// at returns the class of the character that begins at s[i], and its length in bytes. s
// is valid UTF-8 and i is within it.
func (c *classes) at(s []byte, i int) (class, int) {
	b := s[i]
	if b < 0x80 {
		return c.ascii[b], 1
	}
	r, n := decode(s, i)
	return c.of(r), n
}

// decode returns the character of two or more bytes that begins at s[i], and its length.
// s is valid UTF-8, so nothing is checked.
func decode(s []byte, i int) (rune, int) {
	b := s[i]
	switch {
	case b < 0xE0:
		return rune(b&0x1F)<<6 | rune(s[i+1]&0x3F), 2
	case b < 0xF0:
		return rune(b&0x0F)<<12 | rune(s[i+1]&0x3F)<<6 | rune(s[i+2]&0x3F), 3
	default:
		return rune(b&0x07)<<18 | rune(s[i+1]&0x3F)<<12 | rune(s[i+2]&0x3F)<<6 | rune(s[i+3]&0x3F), 4
	}
}

// varint reads a number of the tables: seven bits a byte, the low ones first.
func varint(s string) (int, string) {
	n, shift := 0, 0
	for i := range len(s) {
		n |= int(s[i]&0x7F) << shift
		shift += 7
		if s[i] < 0x80 {
			return n, s[i+1:]
		}
	}
	return n, ""
}
