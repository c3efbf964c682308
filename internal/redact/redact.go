package redact

import (
	"io"
	"regexp"
	"strings"
)

// mark stands for what was removed.
const mark = "xxxxx"

var (
	scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)
	word   = regexp.MustCompile(`\S*@\S*`)
)

// Text returns the text without users and passwords of addresses.
func Text(s string) string {
	if !strings.Contains(s, "@") && !strings.Contains(s, "://") {
		return s
	}
	parts := strings.Split(s, `"`)
	for i, part := range parts {
		begin := scheme.FindString(part)
		if i > 0 && begin != "" { // a value in quotes, which may have spaces
			parts[i] = begin + address(part[len(begin):])
		} else {
			parts[i] = word.ReplaceAllStringFunc(part, inWord)
		}
	}
	return strings.Join(parts, `"`)
}

// address is Text for what follows a scheme.
func address(s string) string {
	at := strings.LastIndexByte(s, '@')
	if at >= 0 {
		return mark + s[at:]
	}
	end := strings.IndexAny(s, "/?# \t\n")
	if end < 0 {
		end = len(s)
	}
	host := strings.TrimRight(s[:end], ".,;:)\\")
	_, port, _ := strings.Cut(host[strings.LastIndexByte(host, ']')+1:], ":")
	if strings.Trim(port, "0123456789") == "" || port == "port" {
		return s
	}
	return mark + s[end:]
}

// inWord is Text for a word that has an @.
func inWord(s string) string {
	before, after, is := strings.Cut(s, "://")
	if is && strings.Contains(after, "@") {
		return before + "://" + address(after)
	}
	user, _, _ := strings.Cut(s, "@")
	if strings.Contains(user, ":") {
		return mark + s[strings.LastIndexByte(s, '@'):]
	}
	return s
}

// Writer returns a writer that passes each piece on to w as Text returns it. A piece has to hold
// whole lines.
func Writer(w io.Writer) io.Writer { return writer{w} }

type writer struct{ io.Writer }

func (w writer) Write(p []byte) (int, error) {
	_, err := io.WriteString(w.Writer, Text(string(p)))
	if err != nil {
		return 0, err
	}
	return len(p), nil
}
