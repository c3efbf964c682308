package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// how is what became of one test.
type how int

const (
	notRun how = iota
	passed
	skipped
	failed
	cutOff // it ran, and there is no word of its end: a crash, or the time was over
)

// report is what `go test -json` said of a run.
type report struct {
	tests  map[string]how
	built  bool
	output bytes.Buffer
}

// read takes the events. What is no event is the go command's own word.
func read(b []byte) *report {
	r := &report{tests: map[string]how{}, built: true}
	s := bufio.NewScanner(bytes.NewReader(b))
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var ev struct{ Action, Test, Output, FailedBuild string }
		if json.Unmarshal(s.Bytes(), &ev) != nil {
			r.output.Write(s.Bytes())
			r.output.WriteByte('\n')
			continue
		}
		r.output.WriteString(ev.Output)
		switch {
		case ev.Action == "build-fail" || ev.FailedBuild != "":
			r.built = false
		case ev.Test == "":
		case ev.Action == "run":
			r.tests[ev.Test] = cutOff
		case ev.Action == "pass":
			r.tests[ev.Test] = passed
		case ev.Action == "fail":
			r.tests[ev.Test] = failed
		case ev.Action == "skip":
			r.tests[ev.Test] = skipped
		}
	}
	return r
}

// of returns what became of a test of the list.
func (r *report) of(test string) how { return r.tests[spelt(test)] }

// spelt is a test's name as go test writes it.
func spelt(test string) string { return strings.ReplaceAll(test, " ", "_") }

// pattern is for -run: this test and no other.
func pattern(tests ...string) string {
	var level [][]string
	for _, t := range tests {
		for i, part := range strings.Split(spelt(t), "/") {
			if i == len(level) {
				level = append(level, nil)
			}
			level[i] = append(level[i], regexp.QuoteMeta(part))
		}
	}
	var out []string
	for _, parts := range level {
		out = append(out, "^("+strings.Join(parts, "|")+")$")
	}
	return strings.Join(out, "/")
}

// story is n lines of what was written: from the first check that has failed, where
// there is one, or the last. What a failed test says of its processes comes after it.
func (r *report) story(n int) string {
	lines := strings.Split(strings.TrimSpace(r.output.String()), "\n")
	first := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "Error Trace:") })
	if first < 0 {
		first = max(0, len(lines)-n)
	}
	return strings.Join(lines[first:min(first+n, len(lines))], "\n")
}
