package bpe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Tokenizer is what a tokenizer.json says. It does not change; safe for concurrent use.
type Tokenizer struct {
	limits  Limits
	classes *classes
	merges  *merges
	symbols *symbols

	before    *added   // found in the text as it is; nil: none
	changes   []change // of the text between those
	after     *added   // found in the changed text; nil: none
	meta      *metaspace
	stages    []stage
	byteLevel bool

	prefix, suffix []uint32 // around a text with special tokens

	lines bool // see cutsLines
}

// file is a tokenizer.json.
type file struct {
	Version       *string         `json:"version"`
	Truncation    json.RawMessage `json:"truncation"`
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"` // of no weight for encoding
	Model         json.RawMessage `json:"model"`
}

// Load reads a tokenizer.json. What it does not understand exactly it refuses, with an
// error that names the member.
func Load(text []byte, limits Limits) (*Tokenizer, error) {
	t, err := load(text, limits.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

func load(text []byte, l Limits) (*Tokenizer, error) {
	if len(text) > l.FileBytes {
		return nil, fmt.Errorf("%d bytes: expected at most %d", len(text), l.FileBytes)
	}
	if !utf8.Valid(text) || loneSurrogate(text) {
		return nil, errors.New("expected valid Unicode")
	}
	var f file
	err := strict("file", text, &f)
	if err != nil {
		return nil, err
	}
	if !absent(f.Truncation) {
		return nil, errors.New("truncation: expected null")
	}
	if !absent(f.Padding) {
		return nil, errors.New("padding: expected null")
	}
	if f.Version != nil && *f.Version != "1.0" {
		return nil, fmt.Errorf("version %q: expected 1.0", *f.Version)
	}
	t := &Tokenizer{limits: l, classes: newClasses()}
	err = errors.Join(t.normalizers("normalizer", f.Normalizer), t.preTokenizers("pre_tokenizer", f.PreTokenizer),
		t.postProcessors("post_processor", f.PostProcessor))
	if err != nil {
		return nil, err
	}
	err = t.model(&f)
	if err != nil {
		return nil, err
	}
	t.lines = t.cutsLines()
	return t, nil
}

// model reads the vocabulary, the merges and the added tokens.
func (t *Tokenizer) model(f *file) error {
	var m model
	err := strict("model", f.Model, &m)
	if err == nil {
		err = m.check(t.limits)
	}
	if err != nil {
		return err
	}
	if t.byteLevel {
		t.symbols, err = byteSymbols(&m)
	} else {
		t.symbols, err = characterSymbols(&m)
	}
	if err != nil {
		return err
	}
	t.merges, err = m.table(t.limits)
	if err != nil {
		return err
	}
	if !t.byteLevel {
		err = m.joints(t.merges, t.limits)
		if err != nil {
			return err
		}
	}
	return t.added(f.AddedTokens, m.Vocab)
}

// added makes the trees of added tokens. tokenizers gives those that the vocabulary lacks
// the next free ids, whatever the file says: a file that says otherwise is refused.
func (t *Tokenizer) added(tokens []addedToken, vocab map[string]uint32) error {
	if len(tokens) > t.limits.Tokens {
		return fmt.Errorf("added_tokens: %d tokens: expected at most %d", len(tokens), t.limits.Tokens)
	}
	next := uint32(len(vocab))
	var before, after []addedText
	seen := map[string]bool{}
	var scratch normal
	for i, a := range tokens {
		place := fmt.Sprintf("added_tokens[%d] %q", i, a.Content)
		switch {
		case a.Content == "" || len(a.Content) > t.limits.AddedTokenBytes:
			return fmt.Errorf("%s: expected 1 to %d bytes", place, t.limits.AddedTokenBytes)
		case a.SingleWord:
			return fmt.Errorf("%s: single_word: expected false", place)
		case seen[a.Content]:
			return fmt.Errorf("%s: expected each token once", place)
		}
		seen[a.Content] = true
		id, ok := vocab[a.Content]
		if !ok {
			id = next
			next++
		}
		if id != a.ID {
			return fmt.Errorf("%s: id %d: expected %d", place, a.ID, id)
		}
		if !a.Normalized {
			before = append(before, addedText{a.Content, a})
			continue
		}
		text := string(scratch.apply(t.changes, []byte(a.Content)))
		if text == "" {
			return fmt.Errorf("%s: expected a text after normalization", place)
		}
		after = append(after, addedText{text, a})
	}
	t.before, t.after = newAdded(t.classes, before), newAdded(t.classes, after)
	if t.after != nil && t.meta != nil && t.meta.first {
		return errors.New("added_tokens: normalized: expected none with prepend_scheme first")
	}
	return nil
}

// absent reports whether a member is missing or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// strict reads a value whose members must all be known.
func strict(place string, raw []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		_, more := d.Token()
		if errors.Is(more, io.EOF) {
			return nil
		}
		err = errors.New("expected nothing after the value")
	}
	return fmt.Errorf("%s: %w", place, err)
}

// loneSurrogate reports whether a JSON text escapes half a pair of UTF-16: encoding/json
// would put another character in its place.
func loneSurrogate(s []byte) bool {
	for i := 0; ; {
		n := bytes.IndexByte(s[i:], '\\')
		if n < 0 || i+n+6 > len(s) {
			return false
		}
		i += n
		high, ok := surrogate(s[i:])
		switch {
		case !ok:
			i += 2
		case !high || i+12 > len(s):
			return true
		default:
			high, ok = surrogate(s[i+6:])
			if !ok || high {
				return true
			}
			i += 12
		}
	}
}

// surrogate reports whether s begins with the escape of one, and of which half.
func surrogate(s []byte) (high, ok bool) {
	if s[0] != '\\' || s[1] != 'u' || s[2]|0x20 != 'd' {
		return false, false
	}
	switch s[3] | 0x20 {
	case '8', '9', 'a', 'b':
		return true, true
	case 'c', 'd', 'e', 'f':
		return false, true
	}
	return false, false
}
