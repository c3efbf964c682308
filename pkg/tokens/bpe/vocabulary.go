package bpe

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// model is the member "model" of a tokenizer.json.
type model struct {
	Type                    string   `json:"type"`
	Dropout                 *float64 `json:"dropout"`
	UnkToken                *string  `json:"unk_token"`
	ContinuingSubwordPrefix *string  `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string  `json:"end_of_word_suffix"`
	FuseUnk                 bool     `json:"fuse_unk"`
	ByteFallback            bool     `json:"byte_fallback"`
	IgnoreMerges            bool     `json:"ignore_merges"`

	Vocab  map[string]uint32 `json:"vocab"`
	Merges json.RawMessage   `json:"merges"`
}

// check refuses what this package does not do.
func (m *model) check(l Limits) error {
	switch {
	case m.Type != "BPE":
		return fmt.Errorf("model.type %q: expected BPE", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("model.dropout %v: expected none", *m.Dropout)
	case m.ContinuingSubwordPrefix != nil && *m.ContinuingSubwordPrefix != "":
		return fmt.Errorf("model.continuing_subword_prefix %q: expected none", *m.ContinuingSubwordPrefix)
	case m.EndOfWordSuffix != nil && *m.EndOfWordSuffix != "":
		return fmt.Errorf("model.end_of_word_suffix %q: expected none", *m.EndOfWordSuffix)
	case len(m.Vocab) == 0:
		return fmt.Errorf("model.vocab: expected tokens")
	case len(m.Vocab) > l.Tokens:
		return fmt.Errorf("model.vocab: %d tokens: expected at most %d", len(m.Vocab), l.Tokens)
	}
	names := make(map[uint32]string, len(m.Vocab))
	for token, id := range m.Vocab {
		if token == "" || id == none {
			return fmt.Errorf("model.vocab: token %q with id %d: expected a text and a lower id", token, id)
		}
		if other, ok := names[id]; ok {
			return fmt.Errorf("model.vocab: id %d is that of %q and %q: expected one token", id, token, other)
		}
		names[id] = token
	}
	return nil
}

// pairs reads the merges, of either form: "a b" or ["a","b"].
func (m *model) pairs(l Limits) ([][]string, error) {
	var pairs [][]string
	err := json.Unmarshal(m.Merges, &pairs)
	if err != nil {
		var lines []string
		err = json.Unmarshal(m.Merges, &lines)
		if err != nil {
			return nil, fmt.Errorf("model.merges: expected pairs of tokens: %w", err)
		}
		pairs = make([][]string, 0, len(lines))
		for _, line := range lines {
			if !strings.HasPrefix(line, "#version") {
				pairs = append(pairs, strings.Split(line, " "))
			}
		}
	}
	if len(pairs) > l.Tokens {
		return nil, fmt.Errorf("model.merges: %d merges: expected at most %d", len(pairs), l.Tokens)
	}
	return pairs, nil
}

// table makes the table of merges.
func (m *model) table(l Limits) (*merges, error) {
	pairs, err := m.pairs(l)
	if err != nil {
		return nil, err
	}
	t := newMerges(max(len(pairs), 8))
	for rank, p := range pairs {
		if len(p) != 2 {
			return nil, fmt.Errorf("model.merges[%d]: %q: expected two tokens", rank, p)
		}
		left, ok1 := m.Vocab[p[0]]
		right, ok2 := m.Vocab[p[1]]
		whole, ok3 := m.Vocab[p[0]+p[1]]
		if !ok1 || !ok2 || !ok3 {
			return nil, fmt.Errorf("model.merges[%d]: %q: expected tokens of the vocabulary that make one", rank, p)
		}
		t.set(left, right, uint32(rank), whole)
	}
	return t, nil
}

// symbols tells which token each character, or each byte, is at first.
type symbols struct {
	bytes   [256]uint32       // byte level: by byte; else: what stands for a byte of an unknown character
	ascii   [128]uint32       // characters below U+0080; none: unknown
	runes   map[rune]uint32   // the other characters that are tokens
	byteful bool              // the bytes are looked up, and not characters
	whole   map[string]uint32 // words that are tokens without merging; nil: no such rule
}

// byteLetters returns the character that stands for each byte in the vocabularies of
// byte-level tokenizers, as GPT-2 chose them: printable bytes stand for themselves, and
// the others for U+0100 and on.
func byteLetters() [256]rune {
	var letters [256]rune
	next := rune(256)
	for b := range letters {
		switch {
		case b >= '!' && b <= '~', b >= 0xA1 && b <= 0xAC, b >= 0xAE:
			letters[b] = rune(b)
		default:
			letters[b] = next
			next++
		}
	}
	return letters
}

// byteSymbols makes the symbols of a byte-level tokenizer. Bytes without a token are left
// out of a word, as long as no token stands for what is unknown.
func byteSymbols(m *model) (*symbols, error) {
	if m.ByteFallback {
		return nil, fmt.Errorf("model.byte_fallback: expected false with ByteLevel")
	}
	s := &symbols{byteful: true}
	letters := byteLetters()
	byLetter := map[rune]byte{}
	for b, r := range letters {
		byLetter[r] = byte(b)
		id, ok := m.Vocab[string(r)]
		if !ok {
			if m.UnkToken != nil {
				return nil, fmt.Errorf("model.unk_token %q: expected none, or a token for each byte", *m.UnkToken)
			}
			id = none
		}
		s.bytes[b] = id
	}
	if !m.IgnoreMerges {
		return s, nil
	}
	s.whole = make(map[string]uint32, len(m.Vocab))
	for token, id := range m.Vocab {
		raw, ok := unletter(token, byLetter)
		if ok {
			s.whole[raw] = id
		}
	}
	return s, nil
}

// unletter returns the bytes that a token of a byte-level vocabulary stands for.
func unletter(token string, byLetter map[rune]byte) (string, bool) {
	raw := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := byLetter[r]
		if !ok {
			return "", false
		}
		raw = append(raw, b)
	}
	return string(raw), true
}

// characterSymbols makes the symbols of a tokenizer of characters, whose unknown ones
// fall back to their bytes.
func characterSymbols(m *model) (*symbols, error) {
	if !m.ByteFallback {
		return nil, fmt.Errorf("model.byte_fallback: expected true without ByteLevel")
	}
	s := &symbols{runes: map[rune]uint32{}}
	for b := range s.bytes {
		id, ok := m.Vocab[byteToken(b)]
		if !ok {
			return nil, fmt.Errorf("model.vocab: expected the token %s, with byte_fallback", byteToken(b))
		}
		s.bytes[b] = id
	}
	for i := range s.ascii {
		s.ascii[i] = none
	}
	for token, id := range m.Vocab {
		r, n := utf8.DecodeRuneInString(token)
		switch {
		case n != len(token):
		case r < 0x80:
			s.ascii[r] = id
		default:
			s.runes[r] = id
		}
	}
	if m.IgnoreMerges {
		s.whole = m.Vocab
	}
	return s, nil
}

func byteToken(b int) string { return fmt.Sprintf("<0x%02X>", b) }

// joints finds the pairs of characters over which merges reach: the last of the left
// token and the first of the right. It finds none where a token for a byte merges, since
// its text is not that of its characters.
func (m *model) joints(t *merges, l Limits) error {
	pairs, err := m.pairs(l)
	if err != nil {
		return err
	}
	stands := make(map[string]bool, 256)
	for b := range 256 {
		stands[byteToken(b)] = true
	}
	joints := make([]uint64, jointBits/64)
	for _, p := range pairs {
		if stands[p[0]] || stands[p[1]] {
			return nil
		}
		left, _ := utf8.DecodeLastRuneInString(p[0])
		right, _ := utf8.DecodeRuneInString(p[1])
		word, bit := jointBit(left, right)
		joints[word] |= bit
	}
	t.joints = joints
	return nil
}
