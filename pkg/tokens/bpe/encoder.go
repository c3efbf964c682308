package bpe

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unicode/utf8"
)

// Encoder encodes texts by one tokenizer. It remembers the words it met, within a fixed
// number of bytes, and keeps what it works with: in the steady state it allocates
// nothing. Not safe for concurrent use.
type Encoder struct {
	t     *Tokenizer
	out   []uint32
	norm  normal
	again []byte // a text with metaspaces
	word  []symbol
	heap  heap
	known []known // by hash of the word

}

// known is a short word and its tokens. The word's bytes are followed by zeros, and by
// its length in the last byte; 0: free.
type known struct {
	low, high uint64
	n         uint32
	ids       [7]uint32
}

// Of words that are remembered: how many, as a power of two, and how long.
const (
	knownBits = 15
	knownWord = 15
)

// keepSymbols is how many symbols an encoder keeps room for between words.
const keepSymbols = 1 << 16

// NewEncoder returns an encoder of t.
func (t *Tokenizer) NewEncoder() *Encoder {
	return &Encoder{t: t, known: make([]known, 1<<knownBits)}
}

// Append appends the tokens of text to dst and returns dst. With special, the tokens are
// added that the tokenizer's template puts around a text, as engines do for the prompts of
// completions. On an error dst has what it had.
func (e *Encoder) Append(dst []uint32, text []byte, special bool) ([]uint32, error) {
	return e.append(dst, text, special, nil)
}

// append is Append with what is remembered, if memory is not nil.
func (e *Encoder) append(dst []uint32, text []byte, special bool, memory *Segments) ([]uint32, error) {
	err := e.check(text)
	if err != nil {
		return dst, err
	}
	e.out = dst
	defer func() { e.out = nil }()
	if special {
		e.out = append(e.out, e.t.prefix...)
	}
	if memory != nil {
		err = memory.parts(e, text)
	} else {
		err = e.parts(text, true)
	}
	if err != nil {
		return dst, err
	}
	if special {
		e.out = append(e.out, e.t.suffix...)
	}
	return e.out, nil
}

// parts encodes a text with its added tokens. first says that it is the beginning of all.
func (e *Encoder) parts(text []byte, first bool) error {
	for p := range e.t.between(text) {
		if p.end > p.begin {
			err := e.segment(text[p.begin:p.end], first && p.taken == 0)
			if err != nil {
				return err
			}
		}
		if p.id != none {
			e.out = append(e.out, p.id)
		}
	}
	return nil
}

func (e *Encoder) check(text []byte) error {
	if len(text) > e.t.limits.TextBytes {
		return ErrTooLong
	}
	if !utf8.Valid(text) {
		return ErrNotUTF8
	}
	return nil
}

// part is a text between added tokens, maybe empty, and the added token after it.
type part struct {
	taken      int // where the token before it ends; 0: there is none
	begin, end int // of the text
	id         uint32
	rest       int  // where the token after it ends
	clean      bool // what follows is found as if it stood alone
}

// between yields the parts of a text. The last one has no token after it.
func (t *Tokenizer) between(text []byte) func(yield func(part) bool) {
	return func(yield func(part) bool) {
		taken, from := 0, 0
		for t.before != nil {
			f, ok := t.before.next(text, from, taken)
			if !ok {
				break
			}
			p := part{taken: taken, begin: taken, end: max(f.begin, taken), id: f.id, rest: f.end, clean: f.end == f.resume}
			if !yield(p) {
				return
			}
			taken, from = f.end, f.resume
		}
		yield(part{taken: taken, begin: taken, end: len(text), id: none, rest: len(text), clean: true})
	}
}

// segment encodes a text without added tokens, but for those that are sought after
// normalization. first says that the text is the beginning of all.
func (e *Encoder) segment(text []byte, first bool) error {
	s := e.norm.apply(e.t.changes, text)
	taken, from := 0, 0
	for e.t.after != nil {
		f, ok := e.t.after.next(s, from, taken)
		if !ok {
			break
		}
		if f.begin > taken {
			err := e.piece(s[taken:f.begin], first)
			if err != nil {
				return err
			}
		}
		e.out = append(e.out, f.id)
		taken, from = f.end, f.resume
	}
	return e.piece(s[taken:], first)
}

// piece encodes a normalized text without added tokens.
func (e *Encoder) piece(s []byte, first bool) error {
	if len(s) == 0 {
		return nil
	}
	if m := e.t.meta; m != nil {
		e.again = replace(e.again[:0], s, []byte(" "), m.mark)
		s = e.again
		if (m.always || m.first && first) && !bytes.HasPrefix(s, m.mark) {
			e.again = slices.Insert(e.again, 0, m.mark...)
			s = e.again
		}
	}
	return e.stage(0, s)
}

// stage cuts a piece by the stages from at on, and encodes what is left as words.
func (e *Encoder) stage(at int, s []byte) error {
	if at == len(e.t.stages) {
		return e.whole(s)
	}
	st := &e.t.stages[at]
	for i := 0; i < len(s); {
		begin, end, resume := st.next(e.t.classes, s, i)
		if end > begin {
			err := e.stage(at+1, s[begin:end])
			if err != nil {
				return err
			}
		}
		i = resume
	}
	return nil
}

// whole encodes a word: within it tokens may merge. A word of characters is cut where no
// merge reaches over, so that it is as short as those of other tokenizers.
func (e *Encoder) whole(s []byte) error {
	if e.t.symbols.byteful {
		return e.remembered(s)
	}
	if e.t.symbols.whole != nil {
		id, ok := e.t.symbols.whole[string(s)]
		if ok {
			e.out = append(e.out, id)
			return nil
		}
	}
	from := 0
	last, i := utf8.DecodeRune(s)
	for i < len(s) {
		r, n := rune(s[i]), 1
		if r >= 0x80 {
			r, n = decode(s, i)
		}
		if e.t.merges.borders(last, r) {
			err := e.remembered(s[from:i])
			if err != nil {
				return err
			}
			from = i
		}
		last = r
		i += n
	}
	return e.remembered(s[from:])
}

// remembered encodes a word, from memory if it is there.
func (e *Encoder) remembered(s []byte) error {
	if len(s) > knownWord {
		return e.encode(s)
	}
	low, high := wordKey(s)
	k := &e.known[(low^high*spread)*spread>>(64-knownBits)]
	if k.low == low && k.high == high {
		e.out = append(e.out, k.ids[:k.n]...)
		return nil
	}
	from := len(e.out)
	err := e.encode(s)
	if err != nil {
		return err
	}
	ids := e.out[from:]
	if len(ids) <= len(k.ids) {
		k.low, k.high, k.n = low, high, uint32(len(ids))
		copy(k.ids[:], ids)
	}
	return nil
}

// wordKey returns a word of 1 to 15 bytes as two numbers, the length included.
func wordKey(s []byte) (low, high uint64) {
	n := len(s)
	high = uint64(n) << 56
	if n >= 8 {
		low = binary.LittleEndian.Uint64(s)
		return low, high | binary.LittleEndian.Uint64(s[n-8:])>>(8*(16-n))
	}
	for i, b := range s {
		low |= uint64(b) << (8 * i)
	}
	return low, high
}

// encode appends the tokens of a word to out.
func (e *Encoder) encode(s []byte) error {
	if len(s) > e.t.limits.WordBytes {
		return ErrTooLong
	}
	y := e.t.symbols
	if y.byteful && y.whole != nil {
		id, ok := y.whole[string(s)]
		if ok {
			e.out = append(e.out, id)
			return nil
		}
	}
	w := e.word[:0]
	if y.byteful {
		for _, b := range s {
			if y.bytes[b] != none {
				w = append(w, symbol{id: y.bytes[b]})
			}
		}
	} else {
		w = y.characters(w, s)
	}
	e.word = w
	e.merge()
	for i := range e.word {
		e.out = append(e.out, e.word[i].id)
	}
	if cap(e.word) > keepSymbols {
		e.word, e.heap = nil, nil
	}
	return nil
}

// characters appends the symbols of characters, and of the bytes of unknown ones.
func (y *symbols) characters(w []symbol, s []byte) []symbol {
	for i := 0; i < len(s); {
		id, n := none, 1
		if s[i] < 0x80 {
			id = y.ascii[s[i]]
		} else {
			var r rune
			r, n = decode(s, i)
			known, ok := y.runes[r]
			if ok {
				id = known
			}
		}
		if id != none {
			w = append(w, symbol{id: id})
		} else {
			for _, b := range s[i : i+n] {
				w = append(w, symbol{id: y.bytes[b]})
			}
		}
		i += n
	}
	return w
}
