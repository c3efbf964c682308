package capture

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
)

// File is what was written down for one system.
type File []Section

// Section is what was written down for one case.
type Section struct {
	Name  string
	Lines []string
}

// String returns the file's text.
func (f File) String() string {
	var b strings.Builder
	for _, s := range f {
		fmt.Fprintf(&b, "# %s\n%s\n\n", s.Name, strings.Join(s.Lines, "\n"))
	}
	return b.String()
}

// Parse reads the text of a file.
func Parse(text string) (f File) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch name, ok := strings.CutPrefix(line, "# "); {
		case ok:
			f = append(f, Section{Name: name})
		case line != "" && len(f) > 0:
			s := &f[len(f)-1]
			s.Lines = append(s.Lines, line)
		}
	}
	return f
}

// Deviation is a known difference between simulators and engines.
type Deviation struct {
	Name, Reason string
	Lines        []*regexp.Regexp // match lines that Differences returns
}

// ParseDeviations reads the file of deviations. Each has a line "name: reason". Indented
// below it are patterns for the differences that it concerns.
func ParseDeviations(text string) (out []Deviation, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if pattern, ok := strings.CutPrefix(line, "\t"); ok {
			if len(out) == 0 {
				return nil, fmt.Errorf("capture: %q belongs to no deviation", line)
			}
			re, err := regexp.Compile("^(?:" + pattern + ")$")
			if err != nil {
				return nil, fmt.Errorf("capture: deviation %s: %w", out[len(out)-1].Name, err)
			}
			out[len(out)-1].Lines = append(out[len(out)-1].Lines, re)
			continue
		}
		name, reason, ok := strings.Cut(line, ": ")
		if !ok || reason == "" {
			return nil, fmt.Errorf("capture: %q: expected a name and a reason", line)
		}
		out = append(out, Deviation{Name: name, Reason: reason})
	}
	return out, nil
}

// Differences compares the file of a system's engines with that of its simulators. A
// difference is "system / case: - line" if only the engine has the line, and has a + if
// only the simulator has it.
func Differences(system string, engine, sim File) (out []string) {
	said := map[string][]string{}
	for _, s := range sim {
		said[s.Name] = s.Lines
	}
	for _, s := range engine {
		a, b := merge(s.Lines), merge(said[s.Name])
		delete(said, s.Name)
		m := difflib.NewMatcher(a, b)
		for _, op := range m.GetOpCodes() {
			if op.Tag == 'e' {
				continue
			}
			for _, line := range a[op.I1:op.I2] {
				out = append(out, fmt.Sprintf("%s / %s: - %s", system, s.Name, line))
			}
			for _, line := range b[op.J1:op.J2] {
				out = append(out, fmt.Sprintf("%s / %s: + %s", system, s.Name, line))
			}
		}
	}
	for _, s := range sim {
		if _, left := said[s.Name]; left {
			out = append(out, fmt.Sprintf("%s / %s: + a case that no engine was asked", system, s.Name))
		}
	}
	return out
}

// merge drops an event of a stream that equals the one before it. Before that it puts events
// of several choices into the order of the choices: an engine sends them as they are made, and
// which choice is the first is chance.
func merge(lines []string) []string {
	var blocks [][]string
	for i := 0; i < len(lines); {
		end := i + 1
		if strings.HasPrefix(lines[i], "event data") {
			for end < len(lines) && strings.ContainsAny(lines[end][:1], ". [") {
				end++
			}
		}
		blocks = append(blocks, lines[i:end])
		i = end
	}
	for i := 0; i < len(blocks); {
		end := i + 1
		for choiceOf(blocks[i]) != "" && end < len(blocks) && choiceOf(blocks[end]) != "" {
			end++
		}
		slices.SortStableFunc(blocks[i:end], func(a, b []string) int { return strings.Compare(choiceOf(a), choiceOf(b)) })
		i = end
	}
	equal := func(a, b []string) bool { return len(a) > 1 && slices.Equal(a, b) }
	return slices.Concat(slices.CompactFunc(blocks, equal)...)
}

// choiceOf returns the line that says of which choice an event is; "": of none.
func choiceOf(block []string) string {
	for _, line := range block {
		if strings.HasPrefix(line, ".choices[0].index ") {
			return line
		}
	}
	return ""
}

// Unexplained returns the differences that match no deviation, and the patterns of
// deviations that match no difference.
func Unexplained(differences []string, deviations []Deviation) (left []string, idle []string) {
	used := map[*regexp.Regexp]bool{}
	for _, d := range differences {
		found := false
		for _, dev := range deviations {
			for _, re := range dev.Lines {
				if re.MatchString(d) {
					used[re], found = true, true
				}
			}
		}
		if !found {
			left = append(left, d)
		}
	}
	for _, dev := range deviations {
		for _, re := range dev.Lines {
			if !used[re] {
				idle = append(idle, dev.Name+": "+re.String())
			}
		}
	}
	return left, idle
}
