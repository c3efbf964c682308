package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/token"
)

// withoutMark is data without the byte order mark that some editors, those of Windows
// above all, put in front of text.
func withoutMark(data []byte) []byte { return bytes.TrimPrefix(data, []byte("\ufeff")) }

// syntax says of err, with which the parser refused data, which line is meant and what is
// wrong with it: in words that say what to change where the kind of mistake is known, and
// else in the parser's own.
func syntax(data []byte, err error) (line int, text string) {
	var y yaml.Error
	if !errors.As(err, &y) || y.GetToken() == nil || y.GetToken().Position == nil {
		return 1, "this is no YAML: " + wholeWords(err.Error())
	}
	tk := y.GetToken()
	line, text = plainly(bytes.Split(data, []byte("\n")), tk, y.GetMessage())
	if text == "" {
		text = wholeWords(y.GetMessage())
	}
	return line, "this is no YAML: " + text
}

var (
	wantsOne    = regexp.MustCompile(`^',' or '([]}])' must be specified`)
	unclosed    = regexp.MustCompile(`^could not find flow mapping end token '([]}])'`)
	unquoted    = regexp.MustCompile(`^could not find end character of (single|double)-quoted text`)
	bareAddress = regexp.MustCompile(`(^|[\s,{\[])(\[[0-9A-Fa-f:.]*\])?:\d`)
	reserved    = regexp.MustCompile("^'([@`])' is a reserved character")
)

const (
	otherIndent = "this line is indented otherwise than its neighbours"
	openers     = "[{"
	closers     = "]}"
	notAllowed  = "value is not allowed in this context"
	notMapping  = "non-map value is specified"
)

// plainly says what the parser's message means for the token that it stopped at, and on
// which line; "" where it does not know.
func plainly(lines [][]byte, tk *token.Token, msg string) (line int, text string) {
	line = tk.Position.Line
	switch {
	case (strings.HasPrefix(msg, "found an invalid key for this map") || strings.HasPrefix(msg, notAllowed) || wantsOne.MatchString(msg)) && line <= len(lines) && bareAddress.Match(lines[line-1]):
		return line, "an address that begins with [ or with a colon: put it in quotes"
	case strings.HasPrefix(msg, "found character '\t'"), strings.HasPrefix(msg, "tab character"):
		return line, "a tab: YAML is indented with spaces"
	case strings.HasPrefix(msg, "mapping value is not allowed in this context"):
		if more := strings.Count(strings.TrimSpace(tk.Origin), "\n"); more > 0 { // a value that a later line goes on with
			return line + more, otherIndent
		}
		return line, `a second ": " on this line: put what is behind the first in quotes if it is text, in { } if it is a mapping`
	case strings.HasPrefix(msg, notAllowed):
		return line, misplaced(lines, line, tk.Value)
	case strings.HasPrefix(msg, notMapping) && tk.Value == "-":
		return line, `an item of a list: expected "key: value", as on the lines around it`
	case strings.HasPrefix(msg, notMapping), strings.HasPrefix(msg, "unexpected key name"):
		return line, `expected "key: value", with a space after the colon`
	}
	return line, unfinished(tk.Value, msg)
}

// misplaced says why the token may not stand on the line where it is the parser's to
// refuse.
func misplaced(lines [][]byte, line int, value string) string {
	if i := strings.Index(closers, value); i >= 0 && len(value) == 1 {
		return fmt.Sprintf("%q without the %q that opens it", value, openers[i:i+1])
	}
	here, first := indentOf(lines, line)
	if !strings.HasPrefix(first, value) {
		return "" // something in front of it on the same line
	}
	for l := line - 1; l > 0; l-- {
		indent, text := indentOf(lines, l)
		if text == "" || text[0] == '#' {
			continue
		}
		if indent == here && strings.HasPrefix(text, "- ") {
			return "a key beside the items of a list: indent it as the keys that it belongs with"
		}
		break
	}
	return otherIndent
}

// indentOf is how far the line is indented, and what it has after that.
func indentOf(lines [][]byte, line int) (indent int, text string) {
	if line < 1 || line > len(lines) {
		return 0, ""
	}
	l := string(bytes.TrimRight(lines[line-1], " \r"))
	text = strings.TrimLeft(l, " ")
	return len(l) - len(text), text
}

// unfinished says what is lacking of brackets and quotes; "" where msg is of neither.
func unfinished(value, msg string) string {
	if m := wantsOne.FindStringSubmatch(msg); m != nil {
		return fmt.Sprintf(`expected "," or %q before this`, m[1])
	}
	switch {
	case strings.HasPrefix(msg, "could not find flow map content"):
		return `"{" without the "}" that closes it`
	case strings.HasPrefix(msg, "sequence end token ']' not found"):
		return `"[" without the "]" that closes it`
	case strings.HasPrefix(msg, "could not find '[' character"):
		return `"]" without the "[" that opens it`
	}
	if m := unclosed.FindStringSubmatch(msg); m != nil {
		i := strings.Index(closers, m[1])
		return fmt.Sprintf("%q without the %q that closes it", openers[i:i+1], m[1])
	}
	if m := unquoted.FindStringSubmatch(msg); m != nil {
		return "a " + m[1] + " quote without the one that closes it"
	}
	sign := ""
	if m := reserved.FindStringSubmatch(msg); m != nil {
		sign = m[1]
	} else if strings.HasPrefix(msg, "undefined alias name") || strings.HasPrefix(msg, "undefined anchor name") || strings.HasPrefix(msg, "unexpected directive value") {
		sign = value
	}
	if sign == "" {
		return ""
	}
	return "text that begins with " + sign + ": put it in quotes"
}

// wholeWords is the first line of s, at most 160 characters of it, and no part of a word.
func wholeWords(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	const most = 160
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	s = string(r[:most])
	if i := strings.LastIndexByte(s, ' '); i > 0 {
		s = s[:i]
	}
	return s + " …"
}
