package ask

import (
	"bytes"
	"strconv"
	"strings"
)

// Sample is one line of Prometheus' text format. Its strings belong to the caller.
type Sample struct {
	Name   string
	labels []label
	Text   string // the value, as it was written
	Value  float64
}

type label struct{ name, value string }

// Label returns the value of a label, or "".
func (s Sample) Label(name string) string {
	for _, l := range s.labels {
		if l.name == name {
			return l.value
		}
	}
	return ""
}

// Samples calls fn for each Sample of a page whose name wanted accepts. Lines
// that are none are passed over: one odd metric must not hide the others.
func Samples(page []byte, wanted func(name string) bool, fn func(Sample)) {
	for line := range bytes.Lines(page) {
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' {
			continue
		}
		end := strings.IndexAny(text, "{ \t")
		if end <= 0 || !wanted(text[:end]) {
			continue
		}
		if s, ok := parseSample(text[:end], text[end:]); ok {
			fn(s)
		}
	}
}

// total adds up the samples of one name. It reads no other lines: pages are large.
func total(page []byte, name string) (sum float64, there bool) {
	for {
		i := bytes.Index(page, []byte(name))
		if i < 0 {
			return sum, there
		}
		line, rest, _ := bytes.Cut(page[i:], []byte("\n"))
		if i == 0 || page[i-1] == '\n' {
			Samples(line, func(n string) bool { return n == name }, func(s Sample) { sum, there = sum+s.Value, true })
		}
		page = rest
	}
}

// parseSample reads what follows a name: labels, a value, perhaps a timestamp.
func parseSample(name, rest string) (Sample, bool) {
	s := Sample{Name: name}
	if rest[0] == '{' {
		var ok bool
		s.labels, rest, ok = parseLabels(rest[1:])
		if !ok {
			return s, false
		}
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 || len(fields) > 2 {
		return s, false
	}
	v, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return s, false
	}
	s.Text, s.Value = fields[0], v
	return s, true
}

// parseLabels reads `name="value",…}` and returns what follows.
func parseLabels(text string) (out []label, rest string, ok bool) {
	for {
		text = strings.TrimLeft(text, " \t,")
		if after, done := strings.CutPrefix(text, "}"); done {
			return out, after, true
		}
		name, after, found := strings.Cut(text, "=")
		after = strings.TrimLeft(after, " \t")
		quoted, err := strconv.QuotedPrefix(after)
		if !found || err != nil || quoted[0] != '"' {
			return nil, "", false
		}
		value, _ := strconv.Unquote(quoted) // the format's \\, \" and \n are Go's
		out = append(out, label{strings.TrimSpace(name), value})
		text = after[len(quoted):]
	}
}
