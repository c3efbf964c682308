package bpe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// behavior says which pieces a pattern makes of a text.
type behavior uint8

const (
	isolated     behavior = iota // matches and what lies between them
	matchesOnly                  // matches; the rest is dropped
	gapsOnly                     // what lies between matches; they are dropped
	withPrevious                 // a match ends the piece before it
	withNext                     // a match begins the piece after it
)

// stage cuts each piece of the stage before into smaller ones.
type stage struct {
	pattern  pattern
	behavior behavior
}

// next returns the piece that begins at i or later, and where the one after it is sought.
// An empty piece counts for nothing. i is within s.
func (st *stage) next(c *classes, s []byte, i int) (begin, end, resume int) {
	b, e := st.pattern.find(c, s, i)
	switch st.behavior {
	case matchesOnly:
		return b, e, e
	case gapsOnly:
		return i, b, e
	case withPrevious:
		return i, e, e
	case withNext:
		if b > i {
			return i, b, b
		}
		b, _ = st.pattern.find(c, s, e)
		return i, b, b
	default:
		if b > i {
			return i, b, b
		}
		return i, e, e
	}
}

// literal is a pattern of one text.
type literal []byte

func (l literal) find(_ *classes, s []byte, i int) (int, int) {
	n := bytes.Index(s[i:], l)
	if n < 0 {
		return len(s), len(s)
	}
	return i + n, i + n + len(l)
}

// digits is the pattern of Digits: each number, or each run of them.
type digits struct{ most int }

func (d digits) find(c *classes, s []byte, i int) (int, int) {
	for i < len(s) {
		is, n := c.numeric(s, i)
		if is {
			break
		}
		i += n
	}
	end := i
	for taken := 0; end < len(s) && taken < d.most; taken++ {
		is, n := c.numeric(s, end)
		if !is {
			break
		}
		end += n
	}
	return i, end
}

// numeric reports whether Digits takes the character at s[i] for a number, and its length. It
// asks Rust's standard library, whose Unicode version is one ahead of that of the expressions:
// it has thirteen numbers more.
func (c *classes) numeric(s []byte, i int) (is bool, n int) {
	if s[i] < 0x80 {
		return c.ascii[s[i]]&number != 0, 1
	}
	r, n := decode(s, i)
	return c.of(r)&number != 0 || r >= 0x11DE0 && r <= 0x11DE9 || r >= 0x16FF4 && r <= 0x16FF6, n
}

// metaspace is the pre-tokenizer of SentencePiece's tokenizers.
type metaspace struct {
	mark   []byte // stands for a space
	always bool   // put before each text between added tokens
	first  bool   // put before the text's beginning alone
	split  bool   // a mark begins a piece
}

// preTokenizer is any of the pre-tokenizers that are known.
type preTokenizer struct {
	Type string `json:"type"`

	PreTokenizers []json.RawMessage `json:"pretokenizers"` // Sequence

	Pattern *struct { // Split
		String *string `json:"String"`
		Regex  *string `json:"Regex"`
	} `json:"pattern"`
	Behavior string `json:"behavior"`
	Invert   bool   `json:"invert"`

	AddPrefixSpace *bool `json:"add_prefix_space"` // ByteLevel, Metaspace
	TrimOffsets    *bool `json:"trim_offsets"`
	UseRegex       *bool `json:"use_regex"`

	IndividualDigits bool `json:"individual_digits"` // Digits

	Replacement   string  `json:"replacement"` // Metaspace
	PrependScheme *string `json:"prepend_scheme"`
	Split         *bool   `json:"split"`
	StrRep        *string `json:"str_rep"`
}

// preTokenizers reads the member "pre_tokenizer" into the stages.
func (t *Tokenizer) preTokenizers(place string, raw json.RawMessage) error {
	if absent(raw) {
		return nil
	}
	var p preTokenizer
	err := strict(place, raw, &p)
	if err != nil {
		return err
	}
	if t.byteLevel || t.meta != nil {
		return fmt.Errorf("%s: %s: expected nothing after ByteLevel or Metaspace", place, p.Type)
	}
	switch p.Type {
	case "Sequence":
		return each(place+".pretokenizers", p.PreTokenizers, t.preTokenizers)
	case "Split":
		return t.split(place, &p)
	case "Digits":
		most := 1 << 30
		if p.IndividualDigits {
			most = 1
		}
		t.stages = append(t.stages, stage{digits{most}, isolated})
		return nil
	case "ByteLevel":
		if p.AddPrefixSpace == nil || *p.AddPrefixSpace {
			return fmt.Errorf("%s: ByteLevel: add_prefix_space: expected false", place)
		}
		if p.UseRegex == nil || *p.UseRegex {
			t.stages = append(t.stages, stage{gpt2{}, isolated})
		}
		t.byteLevel = true
		return nil
	case "Metaspace":
		return t.metaspace(place, &p)
	default:
		return fmt.Errorf("%s: type %q: expected Sequence, Split, Digits, ByteLevel or Metaspace", place, p.Type)
	}
}

func (t *Tokenizer) split(place string, p *preTokenizer) error {
	var st stage
	switch {
	case p.Pattern == nil || (p.Pattern.String == nil) == (p.Pattern.Regex == nil):
		return fmt.Errorf("%s.pattern: expected String or Regex", place)
	case p.Pattern.Regex != nil:
		known, ok := patterns()[*p.Pattern.Regex]
		if !ok {
			return fmt.Errorf("%s.pattern: Regex %q: expected one of those in use", place, *p.Pattern.Regex)
		}
		st.pattern = known
	case *p.Pattern.String == "":
		return fmt.Errorf("%s.pattern: String: expected a text", place)
	default:
		st.pattern = literal(*p.Pattern.String)
	}
	form := p.Behavior
	if p.Invert {
		form += ", inverted"
	}
	switch form {
	case "Isolated", "Isolated, inverted":
		st.behavior = isolated
	case "Removed":
		st.behavior = gapsOnly
	case "Removed, inverted":
		st.behavior = matchesOnly
	case "MergedWithPrevious":
		st.behavior = withPrevious
	case "MergedWithNext":
		st.behavior = withNext
	default:
		return fmt.Errorf("%s: behavior %s: expected Isolated, Removed, MergedWithPrevious or MergedWithNext", place, form)
	}
	t.stages = append(t.stages, st)
	return nil
}

func (t *Tokenizer) metaspace(place string, p *preTokenizer) error {
	if len(t.stages) > 0 {
		return fmt.Errorf("%s: Metaspace: expected no Split before it", place)
	}
	r, n := utf8.DecodeRuneInString(p.Replacement)
	if n == 0 || n != len(p.Replacement) || r == ' ' {
		return fmt.Errorf("%s.replacement %q: expected one character", place, p.Replacement)
	}
	m := &metaspace{mark: []byte(p.Replacement), split: p.Split == nil || *p.Split}
	scheme := "always"
	if p.PrependScheme != nil {
		scheme = *p.PrependScheme
	}
	if p.AddPrefixSpace != nil && !*p.AddPrefixSpace {
		if scheme != "never" {
			return fmt.Errorf("%s: add_prefix_space false: expected prepend_scheme never", place)
		}
	}
	switch scheme {
	case "always":
		m.always = true
	case "first":
		m.first = true
	case "never":
	default:
		return fmt.Errorf("%s.prepend_scheme %q: expected always, first or never", place, scheme)
	}
	t.meta = m
	if m.split {
		t.stages = append(t.stages, stage{literal(m.mark), withNext})
	}
	return nil
}
