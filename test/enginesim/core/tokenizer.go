package core

import (
	"fmt"
	"strconv"
)

// VocabSize bounds token ids: they lie in [0, VocabSize).
const VocabSize = 1 << 18

// Ids below firstWordToken are marks of the template.
const (
	tokenStart uint32 = 1 // before a message
	tokenEnd   uint32 = 2 // after a message

	firstWordToken = 16
	maxPieceBytes  = 32
)

// Message is one turn of a conversation as the chat template sees it.
type Message struct {
	Role    string
	Content string
}

// Tokenize returns the token ids of text: one for each word (with one blank before it),
// punctuation mark or line break. The ids are the same in every process. Tokenize(a+b) is
// Tokenize(a)+Tokenize(b) if b begins with a blank or a mark.
func Tokenize(text string) []uint32 {
	if text == "" {
		return []uint32{}
	}
	return AppendTokens(make([]uint32, 0, len(text)/5+1), text)
}

// AppendTokens appends the token ids of text to dst.
func AppendTokens(dst []uint32, text string) []uint32 {
	for i := 0; i < len(text); {
		start := i
		if text[i] == ' ' && i+1 < len(text) && wordByte(text[i+1]) {
			i++
		}
		if wordByte(text[i]) {
			for i < len(text) && wordByte(text[i]) && i-start < maxPieceBytes {
				i++
			}
		} else {
			i++
		}
		dst = append(dst, pieceToken(text[start:i]))
	}
	return dst
}

func wordByte(b byte) bool {
	return b >= 0x80 || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '_'
}

// pieceToken maps a piece by its hash (FNV-1a) to an id above the marks.
func pieceToken(piece string) uint32 {
	h := uint32(2166136261)
	for i := range len(piece) {
		h = (h ^ uint32(piece[i])) * 16777619
	}
	h ^= h >> 15
	return firstWordToken + h%(VocabSize-firstWordToken)
}

// ChatTokens applies the chat template. The ids of a conversation begin the ids of the
// same conversation with more messages. This is also so if the first list ended in a
// generation prompt and the next message is the assistant's.
func ChatTokens(messages []Message, addGenerationPrompt bool) []uint32 {
	n := 8
	for i := range messages {
		n += 4 + len(messages[i].Content)/5
	}
	dst := make([]uint32, 0, n)
	for i := range messages {
		dst = appendMessage(dst, messages[i])
	}
	if addGenerationPrompt {
		dst = append(dst, tokenStart, pieceToken("assistant"))
	}
	return dst
}

func appendMessage(dst []uint32, m Message) []uint32 {
	dst = append(dst, tokenStart, pieceToken(m.Role))
	dst = AppendTokens(dst, m.Content)
	return append(dst, tokenEnd)
}

// Digest identifies a prompt: 16 hex digits over its token ids. The first word of every
// answer is "d" and the digest of its prompt.
func Digest(tokens []uint32) string { return fmt.Sprintf("%016x", digest(tokens)) }

func digest(tokens []uint32) uint64 {
	h := uint64(14695981039346656037)
	for _, t := range tokens {
		h = (h ^ uint64(t)) * 1099511628211
		h ^= h >> 29
	}
	return h
}

// Answer returns the whole text that a worker generates for the prompt, with one word for
// each token.
func Answer(prompt []uint32, tokens int) string {
	d := digest(prompt)
	var b []byte
	for i := range tokens {
		b = appendAnswerPiece(b, d, i)
	}
	return string(b)
}

// appendAnswerPiece appends token i of the answer to the prompt whose digest is d.
func appendAnswerPiece(dst []byte, d uint64, i int) []byte {
	if i == 0 {
		return fmt.Appendf(dst, "d%016x", d)
	}
	return strconv.AppendInt(append(dst, ' ', 'w'), int64(i), 10)
}

// AnswerTokens returns tokens of Answer, without building the text.
func AnswerTokens(d uint64, from, to int) []uint32 {
	out := make([]uint32, 0, to-from)
	var piece []byte
	for i := from; i < to; i++ {
		piece = appendAnswerPiece(piece[:0], d, i)
		out = append(out, pieceToken(string(piece)))
	}
	return out
}
