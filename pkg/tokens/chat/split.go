package chat

import (
	"bytes"

	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

func refuse(what string) error { return &jinja.Error{Kind: jinja.Refused, What: what} }

func raise(what string) error { return &jinja.Error{Kind: jinja.Raised, What: what} }

// Elements cuts a JSON array into the raw bytes of its elements, which share raw. It looks
// at brackets and quotes alone: what is no JSON is found when an element is decoded.
func Elements(dst [][]byte, raw []byte) ([][]byte, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) < 2 || raw[0] != '[' || raw[len(raw)-1] != ']' {
		return nil, refuse("a member that is no list")
	}
	raw = raw[1 : len(raw)-1]
	depth, from := 0, 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			n := endOfText(raw[i+1:])
			if n < 0 {
				return nil, refuse("a member that is no JSON")
			}
			i += n
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth < 0 {
				return nil, refuse("a member that is no JSON")
			}
		case ',':
			if depth == 0 {
				dst = append(dst, bytes.TrimSpace(raw[from:i]))
				from = i + 1
			}
		}
	}
	last := bytes.TrimSpace(raw[from:])
	if depth != 0 {
		return nil, refuse("a member that is no JSON")
	}
	if len(last) > 0 || from > 0 {
		dst = append(dst, last)
	}
	return dst, nil
}

// endOfText returns where a text's closing quote is, counted from 1, or -1.
func endOfText(s []byte) int {
	for at := 0; ; {
		n := bytes.IndexByte(s[at:], '"')
		if n < 0 {
			return -1
		}
		at += n
		slashes := 0
		for at-slashes > 0 && s[at-slashes-1] == '\\' {
			slashes++
		}
		at++
		if slashes%2 == 0 {
			return at
		}
	}
}
