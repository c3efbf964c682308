package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// watch keeps the input in a file and prints what a person waits for, and returns
// whether nothing has failed.
func watch(in io.Reader, file string, w io.Writer, quiet bool) (ok bool, err error) {
	f, err := os.Create(file)
	if err != nil {
		return false, err
	}
	kept := bufio.NewWriter(f)
	v := watcher{w: w, quiet: quiet, ok: true, output: map[string][]string{}, tests: map[string]int{}}
	err = each(in, func(line []byte, e *event) {
		_, _ = kept.Write(line) // an error stays until Flush
		_ = kept.WriteByte('\n')
		if e == nil {
			v.say("%s\n", line)
			return
		}
		v.see(e)
	})
	return v.ok, errors.Join(err, kept.Flush(), f.Close())
}

type watcher struct {
	w      io.Writer
	quiet  bool
	ok     bool
	output map[string][]string // of what has not ended
	tests  map[string]int      // that have passed, by package
	begun  time.Time
	last   time.Time // when something was said of what passes
}

// patience is how long nothing is said while tests pass.
const patience = 20 * time.Second

func (v *watcher) say(format string, a ...any) { _, _ = fmt.Fprintf(v.w, format, a...) }

func (v *watcher) see(e *event) {
	name := e.name()
	if v.begun.IsZero() {
		v.begun, v.last = e.Time, e.Time
	}
	switch e.Action {
	case "output", "build-output":
		v.output[name] = append(v.output[name], e.Output)
		return
	case "pass":
		if e.Test != "" {
			v.tests[e.Package]++
		}
		v.passed(e)
	case "fail", "build-fail":
		v.ok = false
		v.say("FAIL  %6.1f s  %s\n", e.Elapsed, short(name))
		v.tell(name)
		if e.Test == "" {
			v.unended(e.of())
		}
	case "skip":
	default:
		return
	}
	delete(v.output, name)
}

// tell prints what has been put out under a name.
func (v *watcher) tell(name string) {
	for _, line := range v.output[name] {
		v.say("    %s", line)
	}
	delete(v.output, name)
}

// unended prints what the tests of a package have put out that had not ended when it
// failed: the process may have died in one of them, and its last words are there.
func (v *watcher) unended(pkg string) {
	for _, name := range slices.Sorted(maps.Keys(v.output)) {
		if strings.HasPrefix(name, pkg+" ") {
			v.say("NOT ENDED  %s\n", short(name))
			v.tell(name)
		}
	}
}

// passed tells of a package that has ended, and of one that goes on for long.
func (v *watcher) passed(e *event) {
	long := e.Time.Sub(v.last) >= patience
	switch {
	case v.quiet || v.tests[e.Package] == 0 || e.Test != "" && !long:
		return
	case e.Test == "":
		v.say("ok    %6.1f s  %5d  %s\n", e.Elapsed, v.tests[e.Package], short(e.Package))
	default:
		v.say("…     %6.0f s  %5d  %s\n", e.Time.Sub(v.begun).Seconds(), v.tests[e.Package], short(e.Package))
	}
	v.last = e.Time
}
