package openai

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxWords is how many bytes of an engine's words are kept.
	MaxWords = 160
	// MaxCompared is the largest request with which words are compared, in bytes.
	MaxCompared = 64 << 10

	readOfError = 64 << 10 // a longer answer has no words
	alike       = 12       // letters and digits in a row, in bytes, that words may not share with the request
)

// Words returns what an engine's error answer says, for people: one line of at most
// MaxWords bytes. Engines quote what they were sent, and a prompt is shown nowhere, so of
// the answer this is only
//
//   - its message: the string error.message, error, message, detail or detail[0].msg of a
//     JSON object, or the text of an answer that is not JSON;
//   - up to the first quotation mark, bracket or equals sign, and up to a word such as
//     "input" before a colon: behind these, engines write what they were sent;
//   - up to the first alike bytes of letters and digits in a row that are in the request,
//     too, whatever its case, escapes, spaces and signs.
//
// There are no words if the request is not at hand, as it was sent and whole, or is longer
// than MaxCompared: nobody could tell then that none of it is among them.
func Words(answer, request []byte) string {
	if len(answer) > readOfError || len(request) > MaxCompared || !isObject(request) {
		return ""
	}
	s := beforeEcho(oneLine(messageOf(answer)))
	s = beforeShared(s, request)
	if len(s) > MaxWords {
		s = strings.ToValidUTF8(s[:MaxWords], "")
	}
	return strings.TrimRight(s, " :;,.-(")
}

func isObject(b []byte) bool {
	_, err := ScanAnswerMembers(b, func(Span, Span) {})
	return err == nil
}

// messageOf returns the message of an error answer.
func messageOf(answer []byte) string {
	if !isObject(answer) {
		if b := bytes.TrimSpace(answer); len(b) == 0 || b[0] == '{' || b[0] == '[' {
			return "" // JSON that is cut
		}
		return string(answer[:min(len(answer), 4*MaxWords)])
	}
	e := memberOf(answer, "error")
	for _, v := range [...][]byte{memberOf(e, "message"), e, memberOf(answer, "message"), memberOf(answer, "detail"), firstMessage(memberOf(answer, "detail"))} {
		if len(v) >= 2 && v[0] == '"' {
			return string(AppendUnescaped(nil, v[1:len(v)-1]))
		}
	}
	return ""
}

// memberOf returns a member's value, or nil if b is no object that has the member.
func memberOf(b []byte, name string) (val []byte) {
	_, err := ScanAnswerMembers(b, func(k, v Span) {
		if isKey(b, k, name) {
			val = v.Of(b)
		}
	})
	if err != nil {
		return nil
	}
	return val
}

// firstMessage returns the member msg of the first of several faults, as FastAPI lists
// them.
func firstMessage(list []byte) (msg []byte) {
	if len(list) == 0 || list[0] != '[' {
		return nil
	}
	first := true
	eachElement(list, 0, 0, func(s Span) {
		if first {
			msg = memberOf(s.Of(list), "msg")
		}
		first = false
	})
	return msg
}

// oneLine makes one line of s, of what can be printed.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, ""), func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }), " ")
}

// beforeEcho returns s up to a sign or a word behind which engines write what they were
// sent. An apostrophe within a word is none.
func beforeEcho(s string) string {
	for i, r := range s {
		switch {
		case r == '\'' && i >= 2 && isLetter(s[i-1]) && isLetter(s[i-2]) && i+1 < len(s) && isLetter(s[i+1]):
		case strings.ContainsRune("'\"`´‘’‚‛“”„‟«»‹›「」『』{}[]<>=", r):
			return s[:i]
		case r == ':':
			word := s[strings.LastIndexByte(s[:i], ' ')+1 : i]
			switch strings.ToLower(strings.TrimRight(word, "s")) {
			case "input", "prompt", "value", "text", "content", "message", "query", "document", "token", "got", "received":
				return s[:i]
			}
		}
	}
	return s
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// beforeShared returns s up to the first run of letters and digits that is in the request,
// too.
func beforeShared(s string, request []byte) string {
	text, at := plain(s)
	if len(text) < alike {
		return s
	}
	runs := make(map[string]int, len(text))
	for i := len(text) - alike; i >= 0; i-- {
		runs[text[i:i+alike]] = at[i]
	}
	cut := len(s)
	sent, _ := plain(string(AppendUnescaped(nil, request)))
	for i := alike; i <= len(sent); i++ {
		if n, ok := runs[sent[i-alike:i]]; ok {
			cut = min(cut, n)
		}
	}
	return s[:cut]
}

// plain returns the letters and digits of s in lower case, and where in s each byte comes
// from.
func plain(s string) (text string, at []int) {
	var b strings.Builder
	var buf [utf8.UTFMax]byte
	for i, r := range s {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			continue
		}
		n := utf8.EncodeRune(buf[:], unicode.ToLower(r))
		b.Write(buf[:n])
		for range n {
			at = append(at, i)
		}
	}
	return b.String(), at
}
