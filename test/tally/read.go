package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// event is one line of go test -json (`go doc test2json`).
type event struct {
	Time                              time.Time
	Action, Package, ImportPath, Test string
	Output                            string
	Elapsed                           float64 // s
}

// of returns the package that the event is about, that of a build included.
func (e *event) of() string { return e.Package + e.ImportPath }

// name is the event's package and test.
func (e *event) name() string { return strings.TrimSuffix(e.of()+" "+e.Test, " ") }

// result is what one run did, as names of tests.
type result struct {
	passed  int
	failed  []string
	skipped []string // with the reason
	output  map[string][]string
	races   races
	took    map[string]float64 // s, of tests without subtests
	first   time.Time
	last    time.Time
}

// read counts one run. A package that fails without a failed test did not build, or
// ended before its time: it counts as one.
func read(in io.Reader) (*result, error) {
	r := &result{output: map[string][]string{}, took: map[string]float64{}}
	parents, broken := map[string]bool{}, map[string]bool{}
	err := each(in, func(line []byte, e *event) {
		if e == nil {
			return // a line of go's own between
		}
		r.see(e, parents, broken)
	})
	slices.Sort(r.failed)
	return r, err
}

func (r *result) see(e *event, parents, broken map[string]bool) {
	if !e.Time.IsZero() {
		if r.first.IsZero() {
			r.first = e.Time
		}
		r.last = e.Time
	}
	name := e.name()
	if i := strings.LastIndexByte(e.Test, '/'); i > 0 {
		parents[e.of()+" "+e.Test[:i]] = true
	}
	leaf := e.Test != "" && !parents[name]
	switch e.Action {
	case "output", "build-output":
		r.output[name] = append(r.output[name], e.Output)
		r.races.see(e)
	case "pass":
		if leaf {
			r.passed++
			r.took[name] = e.Elapsed
		}
		delete(r.output, name)
	case "fail":
		alone := e.Test == "" && !broken[e.of()]
		if alone {
			r.output[name] = append(r.unended(e.of()), r.output[name]...)
		}
		if alone || leaf {
			r.failed = append(r.failed, name)
			r.took[name] = e.Elapsed
		}
		broken[e.of()] = true
	case "skip":
		if e.Test != "" {
			r.skipped = append(r.skipped, name+": "+reason(r.output[name]))
		}
		delete(r.output, name)
	}
}

// unended returns what the tests of a package have put out that had not ended when it
// failed without a failed test: the process died in one of them.
func (r *result) unended(pkg string) (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(r.output)) {
		if strings.HasPrefix(name, pkg+" ") {
			lines = append(lines, r.output[name]...)
		}
	}
	return lines
}

// races are the reports of the race detector. It fails whichever tests are running, and go
// gives its words to any test, also to one that passes.
type races struct {
	within string // the package whose report is being read
	lines  []string
}

// see keeps the line if it is of a report.
func (r *races) see(e *event) {
	switch {
	case strings.HasPrefix(e.Output, "WARNING: DATA RACE"):
		r.within = e.of()
		r.lines = append(r.lines, "in "+r.within+":\n")
	case r.within != e.of():
		return
	case strings.HasPrefix(e.Output, "====="):
		r.within = ""
		return
	}
	if r.within != "" {
		r.lines = append(r.lines, e.Output)
	}
}

// said is how a test says why it is skipped.
var said = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)`)

func reason(output []string) string {
	for _, line := range output {
		if m := said.FindStringSubmatch(line); m != nil {
			return strings.TrimSpace(m[1])
		}
	}
	return "no reason given"
}

// each calls f for every line; the event is nil where the line is none.
func each(in io.Reader, f func(line []byte, e *event)) error {
	s := bufio.NewScanner(in)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		e := new(event)
		if json.Unmarshal(s.Bytes(), e) != nil {
			e = nil
		}
		f(s.Bytes(), e)
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("read go's output: %w", err)
	}
	return nil
}
