package bpe

import (
	_ "embed" // for the tables
	"slices"
	"unicode/utf8"
)

// nfc brings text into Unicode's normalization form C, as tokenizers does it: by the
// Unicode version of tokenizers, and without the limit on the number of marks in a row
// that golang.org/x/text/unicode/norm keeps by inserting a character.
type nfc struct {
	pages    [0x110000 >> 8]uint16
	blocks   [][256]uint16   // the combining class; maybe, if the character can change
	parts    map[rune][]rune // full canonical decompositions, without Hangul
	together map[[2]rune]rune
}

// maybe marks a character that form C lacks, or that may compose with one before it.
const maybe = 1 << 8

// Hangul syllables are composed by arithmetic (the Unicode standard says how).
const (
	hangulBase, leadBase, vowelBase, tailBase = 0xAC00, 0x1100, 0x1161, 0x11A7
	leads, vowels, tails                      = 19, 21, 28
	hanguls                                   = leads * vowels * tails
)

var (
	// markClasses are the combining classes above 0: distance from the one before, class.
	//
	//go:embed tables/marks
	markClasses string
	// mappings are the canonical decompositions, without Hangul: distance from the one before,
	// twice the length plus whether it composes again, the code points.
	//
	//go:embed tables/mappings
	mappings string
)

func newNFC() *nfc {
	n := &nfc{parts: map[rune][]rune{}, together: map[[2]rune]rune{}}
	props := map[rune]uint16{}
	at := 0
	for s := markClasses; s != ""; {
		var d int
		d, s = varint(s)
		at += d
		props[rune(at)] = uint16(s[0])
		s = s[1:]
	}
	at = 0
	whole := map[string]rune{} // by its parts: what composes again
	for s := mappings; s != ""; {
		var d int
		d, s = varint(s)
		at += d
		count, composes := s[0]>>1, s[0]&1 == 1
		s = s[1:]
		parts := make([]rune, count)
		for i := range parts {
			d, s = varint(s)
			parts[i] = rune(d)
		}
		n.parts[rune(at)] = parts
		if composes {
			whole[string(parts)] = rune(at)
		} else {
			props[rune(at)] |= maybe
		}
	}
	n.pair(whole, props)
	n.fill(props)
	return n
}

// pair finds the two characters of which each composed one is made last.
func (n *nfc) pair(whole map[string]rune, props map[rune]uint16) {
	for _, r := range whole {
		parts := n.parts[r]
		last := parts[len(parts)-1]
		first := parts[0]
		if len(parts) > 2 {
			first = whole[string(parts[:len(parts)-1])]
		}
		n.together[[2]rune{first, last}] = r
		props[last] |= maybe
	}
	for v := rune(vowelBase); v < vowelBase+vowels; v++ {
		props[v] |= maybe
	}
	for t := rune(tailBase + 1); t < tailBase+tails; t++ {
		props[t] |= maybe
	}
}

// fill lays the properties into pages. Page 0 is the empty one.
func (n *nfc) fill(props map[rune]uint16) {
	n.blocks = make([][256]uint16, 1)
	for r, p := range props {
		if n.pages[r>>8] == 0 {
			n.pages[r>>8] = uint16(len(n.blocks))
			n.blocks = append(n.blocks, [256]uint16{})
		}
		n.blocks[n.pages[r>>8]][r&255] = p
	}
}

func (n *nfc) of(r rune) uint16 { return n.blocks[n.pages[r>>8]][r&255] }

// is reports whether form C surely leaves s as it is.
func (n *nfc) is(s []byte) bool {
	last := uint16(0)
	for i := 0; i < len(s); {
		// No character below U+0300 combines, and their composed forms stay.
		if s[i] < 0xCC {
			if s[i] < 0x80 {
				i++
			} else {
				i += 2
			}
			last = 0
			continue
		}
		r, size := decode(s, i)
		i += size
		p := n.of(r)
		if p&maybe != 0 || p != 0 && p < last {
			return false
		}
		last = p
	}
	return true
}

// append appends form C of s to dst. The runes are scratch, and returned for the next
// call.
func (n *nfc) append(dst, s []byte, runes []rune) ([]byte, []rune) {
	runes = runes[:0]
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRune(s[i:])
		i += size
		runes = n.decompose(runes, r)
	}
	n.order(runes)
	for _, r := range n.compose(runes) {
		dst = utf8.AppendRune(dst, r)
	}
	return dst, runes
}

func (n *nfc) decompose(dst []rune, r rune) []rune {
	if r < 0xC0 {
		return append(dst, r)
	}
	if h := r - hangulBase; h >= 0 && h < hanguls {
		dst = append(dst, leadBase+h/(vowels*tails), vowelBase+h%(vowels*tails)/tails)
		if t := h % tails; t > 0 {
			dst = append(dst, tailBase+t)
		}
		return dst
	}
	if parts, ok := n.parts[r]; ok {
		return append(dst, parts...)
	}
	return append(dst, r)
}

// order sorts each run of marks by combining class; marks of one class keep their order.
func (n *nfc) order(runes []rune) {
	for i := 0; i < len(runes); i++ {
		if n.of(runes[i])&0xFF == 0 {
			continue
		}
		end := i + 1
		for end < len(runes) && n.of(runes[end])&0xFF != 0 {
			end++
		}
		if end-i > 1 {
			slices.SortStableFunc(runes[i:end], func(a, b rune) int { return int(n.of(a)&0xFF) - int(n.of(b)&0xFF) })
		}
		i = end
	}
}

// compose composes in place: each character with the last starter before it, unless one
// between them has no lower combining class.
func (n *nfc) compose(runes []rune) []rune {
	out, starter, last := 0, -1, uint16(0)
	for _, r := range runes {
		c := n.of(r) & 0xFF
		if starter >= 0 && (out == starter+1 || last < c) {
			whole, ok := n.join(runes[starter], r)
			if ok {
				runes[starter] = whole
				continue
			}
		}
		if c == 0 {
			starter = out
		}
		last = c
		runes[out] = r
		out++
	}
	return runes[:out]
}

func (n *nfc) join(a, b rune) (rune, bool) {
	if l, v := a-leadBase, b-vowelBase; l >= 0 && l < leads && v >= 0 && v < vowels {
		return hangulBase + (l*vowels+v)*tails, true
	}
	if h, t := a-hangulBase, b-tailBase; h >= 0 && h < hanguls && h%tails == 0 && t > 0 && t < tails {
		return a + t, true
	}
	r, ok := n.together[[2]rune{a, b}]
	return r, ok
}
