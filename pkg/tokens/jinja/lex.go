package jinja

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokEnd tokenKind = iota
	tokData
	tokVarBegin
	tokVarEnd
	tokBlockBegin
	tokBlockEnd
	tokName
	tokText
	tokNumber
	tokOp
)

// A token of the source. s is a name, an operator or a text; v is a number.
type token struct {
	kind tokenKind
	s    string
	v    Value
}

// lexer cuts a template into tokens by Jinja's rules for whitespace around tags.
type lexer struct {
	src  string
	pos  int
	toks []token
	// lineStart: what was read last ended with a line break, so blanks before a tag are a
	// line's indent.
	lineStart bool
}

// lex reads a whole template.
func lex(source string) []token {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{src: source, lineStart: true}
	for l.pos < len(l.src) {
		l.root()
	}
	return append(l.toks, token{})
}

func (l *lexer) emit(kind tokenKind, s string) { l.toks = append(l.toks, token{kind: kind, s: s}) }

// root reads text up to the next tag, and the tag.
func (l *lexer) root() {
	rest := l.src[l.pos:]
	tag := tagBegin.FindStringIndex(rest)
	if tag == nil {
		l.emit(tokData, rest)
		l.pos = len(l.src)
		return
	}
	text, kind := rest[:tag[0]], rest[tag[0]+1]
	l.pos += tag[1]
	l.text(text, l.sign(), kind == '{')
	switch kind {
	case '#':
		l.comment()
		return
	case '{':
		l.emit(tokVarBegin, "")
		l.inside(tokVarEnd)
		return
	}
	if rawTag.MatchString(l.src[l.pos:]) {
		panic(refuse("the tag raw"))
	}
	l.emit(tokBlockBegin, "")
	l.inside(tokBlockEnd)
}

var (
	tagBegin = regexp.MustCompile(`\{[%{#]`)
	rawTag   = regexp.MustCompile(`^\s*raw\s*-?%\}`) // what follows is no template
)

// sign reads the sign after the beginning of a tag; 0: there is none.
func (l *lexer) sign() byte {
	if l.pos < len(l.src) && (l.src[l.pos] == '-' || l.src[l.pos] == '+') {
		l.pos++
		return l.src[l.pos-1]
	}
	return 0
}

// text emits the text before a tag, stripped as the tag's sign and its kind ask for.
func (l *lexer) text(text string, sign byte, variable bool) {
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, IsSpace)
	case sign != '+' && !variable:
		line := strings.LastIndexByte(text, '\n') + 1
		if (line > 0 || l.lineStart) && strings.TrimLeftFunc(text[line:], IsSpace) == "" {
			text = text[:line]
		}
	}
	if text != "" {
		l.emit(tokData, text)
	}
}

// closeTag reads the end of a tag, `+%}`, `-%}` with the blanks after it, or `%}` with one
// line break after it (not after a variable's end).
func (l *lexer) closeTag(end string, trim bool) bool {
	rest := l.src[l.pos:]
	from := l.pos
	switch {
	case strings.HasPrefix(rest, "-"+end):
		l.pos = l.skipSpace(l.pos + 1 + len(end))
	case trim && strings.HasPrefix(rest, "+"+end):
		l.pos += 1 + len(end)
	case strings.HasPrefix(rest, end):
		l.pos += len(end)
		if trim && strings.HasPrefix(l.src[l.pos:], "\n") {
			l.pos++
		}
	default:
		return false
	}
	l.lineStart = l.pos > from && l.src[l.pos-1] == '\n'
	return true
}

func (l *lexer) comment() {
	i := strings.Index(l.src[l.pos:], "#}")
	if l.pos == len(l.src) {
		return // as Jinja takes one with nothing in it
	}
	if i < 0 {
		panic(raise("a comment does not end"))
	}
	l.pos += i
	if i > 0 && (l.src[l.pos-1] == '-' || l.src[l.pos-1] == '+') {
		l.pos--
	}
	l.closeTag("#}", true)
}

func (l *lexer) skipSpace(at int) int {
	return at + len(l.src[at:]) - len(strings.TrimLeftFunc(l.src[at:], IsSpace))
}

// inside reads the expression or statement of a tag, up to its end.
func (l *lexer) inside(end tokenKind) {
	closing, trim := "%}", true
	if end == tokVarEnd {
		closing, trim = "}}", false
	}
	var open []byte
	for {
		if len(open) == 0 && l.closeTag(closing, trim) {
			l.emit(end, "")
			return
		}
		if l.pos >= len(l.src) {
			panic(raise("a tag does not end"))
		}
		c := l.src[l.pos]
		r, size := utf8.DecodeRuneInString(l.src[l.pos:])
		switch {
		case IsSpace(r):
			l.pos += size
		case c >= '0' && c <= '9':
			l.number()
		case isNameByte(c):
			from := l.pos
			for l.pos < len(l.src) && (isNameByte(l.src[l.pos]) || isDigit(l.src[l.pos])) {
				l.pos++
			}
			l.emit(tokName, l.src[from:l.pos])
		case c >= utf8.RuneSelf:
			panic(refuse("a name beyond ASCII"))
		case c == '\'' || c == '"':
			l.str(c)
		default:
			open = l.operator(open)
		}
	}
}

func isNameByte(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func (l *lexer) operator(open []byte) []byte {
	rest := l.src[l.pos:]
	for _, op := range []string{"**", "//", "==", "!=", ">=", "<="} {
		if strings.HasPrefix(rest, op) {
			l.pos += 2
			l.emit(tokOp, op)
			return open
		}
	}
	c := rest[0]
	if strings.IndexByte("+-/*%~[](){}><=.:|,;", c) < 0 {
		panic(raise("a character that no expression has"))
	}
	switch c {
	case '(':
		open = append(open, ')')
	case '[':
		open = append(open, ']')
	case '{':
		open = append(open, '}')
	case ')', ']', '}':
		if len(open) == 0 || open[len(open)-1] != c {
			panic(raise("brackets do not match"))
		}
		open = open[:len(open)-1]
	}
	l.pos++
	l.emit(tokOp, string(c))
	return open
}

// numeral is how a number begins, then the rest of a float; single underscores may be between
// digits.
var numeral = regexp.MustCompile(`^(\d(?:_?\d)*)(\.\d(?:_?\d)*)?([eE][+-]?\d(?:_?\d)*)?`)

// number reads an integer or a float, as Jinja's patterns tell them apart.
func (l *lexer) number() {
	rest := l.src[l.pos:]
	if len(rest) > 1 && rest[0] == '0' && strings.IndexByte("xXoObB_0123456789", rest[1]) >= 0 {
		panic(refuse("a number that begins with 0"))
	}
	m := numeral.FindStringSubmatch(rest)
	text, digits := m[0], m[1]
	// A dot before the digits makes them an attribute's number, never a float.
	if l.pos > 0 && l.src[l.pos-1] == '.' {
		text = digits
	}
	l.pos += len(text)
	l.toks = append(l.toks, token{kind: tokNumber, v: parseNumber(strings.ReplaceAll(text, "_", ""), text != digits)})
}

// parseNumber reads a number in decimal digits.
func parseNumber(s string, float bool) Value {
	if float {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || math.IsInf(f, 0) {
			panic(refuse("a number out of range"))
		}
		return f
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(errInteger)
	}
	return n
}

// str reads a text between quotes.
func (l *lexer) str(quote byte) {
	from := l.pos + 1
	for i := from; i < len(l.src); i++ {
		switch l.src[i] {
		case '\\':
			i++
		case quote:
			l.emit(tokText, unescape(l.src[from:i]))
			l.pos = i + 1
			return
		}
	}
	panic(raise("a text does not end"))
}

var escapes = map[byte]string{
	'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f",
	'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// unescape reads Python's escapes.
func unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b = append(b, s[i])
			continue
		}
		i++
		if i >= len(s) {
			panic(raise("a text ends with a backslash"))
		}
		known, ok := escapes[s[i]]
		if ok {
			b = append(b, known...)
			continue
		}
		size := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]
		switch {
		case size > 0:
			if i+size >= len(s) {
				panic(raise("a text's escape is cut short"))
			}
			n, err := strconv.ParseUint(s[i+1:i+1+size], 16, 32)
			if err != nil {
				panic(raise("a text's escape is not hexadecimal"))
			}
			if !utf8.ValidRune(rune(n)) {
				panic(refuse("an escape that is no character"))
			}
			b = utf8.AppendRune(b, rune(n))
			i += size
		case s[i] == 'N' || isDigit(s[i]):
			panic(refuse("an escape by name or in octal"))
		default:
			b = append(b, '\\', s[i])
		}
	}
	return string(b)
}
