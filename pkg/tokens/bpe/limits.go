package bpe

import (
	"cmp"
	"errors"
)

// Limits bound what a file and a text may cost. A zero field means its default.
type Limits struct {
	// FileBytes is the largest tokenizer.json. Default: 64 MiB; the largest in use has 33
	// MiB. Loading takes some ten times the file's size for as long as it lasts.
	FileBytes int

	// Tokens is how many tokens, and how many merges, a file may have. Default: 2^21.
	Tokens int

	// AddedTokenBytes is the longest added token. Default: 256. Text is searched for
	// added tokens in at most this many steps for each of its bytes.
	AddedTokenBytes int

	// TextBytes is the longest text that is encoded. Default: 16 MiB.
	TextBytes int

	// WordBytes is the longest run of text within which tokens may merge. Default: 4 MiB.
	// Merging takes 24 bytes of memory for each byte of such a run.
	WordBytes int
}

func (l Limits) withDefaults() Limits {
	return Limits{
		FileBytes: cmp.Or(l.FileBytes, 64<<20), Tokens: cmp.Or(l.Tokens, 1<<21), AddedTokenBytes: cmp.Or(l.AddedTokenBytes, 256),
		TextBytes: cmp.Or(l.TextBytes, 16<<20), WordBytes: cmp.Or(l.WordBytes, 4<<20),
	}
}

// Errors of encoding. No error contains any of the text.
var (
	// ErrTooLong means that the text, or one word of it, is longer than the limits allow.
	ErrTooLong = errors.New("bpe: the text is longer than the limit")
	// ErrNotUTF8 means that the text is not UTF-8. Engines refuse such a request.
	ErrNotUTF8 = errors.New("bpe: the text is not UTF-8")
)
