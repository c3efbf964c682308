package bpe

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// change is one step that is taken with each text between added tokens.
type change struct {
	nfc      *nfc   // form C; else
	prepend  []byte // put before a text; else
	old, new []byte // replaced
}

// normalizer is any of the normalizers that are known.
type normalizer struct {
	Type        string            `json:"type"`
	Normalizers []json.RawMessage `json:"normalizers"` // Sequence
	Prepend     string            `json:"prepend"`
	Pattern     *struct {         // Replace
		String *string `json:"String"`
		Regex  *string `json:"Regex"`
	} `json:"pattern"`
	Content string `json:"content"`
}

// normalizers reads the member "normalizer" into the changes.
func (t *Tokenizer) normalizers(place string, raw json.RawMessage) error {
	if absent(raw) {
		return nil
	}
	var n normalizer
	err := strict(place, raw, &n)
	if err != nil {
		return err
	}
	switch n.Type {
	case "Sequence":
		return each(place+".normalizers", n.Normalizers, t.normalizers)
	case "NFC":
		t.changes = append(t.changes, change{nfc: newNFC()})
	case "Prepend":
		if n.Prepend != "" {
			t.changes = append(t.changes, change{prepend: []byte(n.Prepend)})
		}
	case "Replace":
		if n.Pattern == nil || n.Pattern.String == nil || n.Pattern.Regex != nil || *n.Pattern.String == "" {
			return fmt.Errorf("%s: Replace: expected a pattern String", place)
		}
		t.changes = append(t.changes, change{old: []byte(*n.Pattern.String), new: []byte(n.Content)})
	default:
		return fmt.Errorf("%s: type %q: expected Sequence, NFC, Prepend or Replace", place, n.Type)
	}
	return nil
}

// each reads the elements of a sequence, which stand at a place of the file.
func each(place string, list []json.RawMessage, read func(place string, raw json.RawMessage) error) error {
	for i, raw := range list {
		if err := read(fmt.Sprintf("%s[%d]", place, i), raw); err != nil {
			return err
		}
	}
	return nil
}

// normal holds what normalizing takes.
type normal struct {
	text, other []byte
	runes       []rune
}

// apply returns s after all changes: s itself, or a text that the next call overwrites.
func (n *normal) apply(changes []change, s []byte) []byte {
	for i := range changes {
		c := &changes[i]
		if len(s) == 0 {
			break
		}
		out := n.other[:0]
		switch {
		case c.nfc != nil:
			if c.nfc.is(s) {
				continue
			}
			out, n.runes = c.nfc.append(out, s, n.runes)
		case c.prepend != nil:
			out = append(append(out, c.prepend...), s...)
		default:
			if !bytes.Contains(s, c.old) {
				continue
			}
			out = replace(out, s, c.old, c.new)
		}
		n.text, n.other = out, n.text
		s = out
	}
	return s
}

// replace appends s to dst with each old as its replacement.
func replace(dst, s, old, with []byte) []byte {
	for {
		i := bytes.Index(s, old)
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(append(dst, s[:i]...), with...)
		s = s[i+len(old):]
	}
}
