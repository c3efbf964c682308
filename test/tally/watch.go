package main

import (
	"bufio"
	"cmp"
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
func (s *step) watch(in io.Reader, file string, o watching) (ok bool, err error) {
	f, err := os.Create(file)
	if err != nil {
		return false, err
	}
	kept := bufio.NewWriter(f)
	v := watcher{watching: o, say: s.say, ok: true, output: map[string][]string{}, tests: map[string]int{}, running: map[string]time.Time{}}
	s.far = v.far
	stop := s.beat()
	err = each(in, func(line []byte, e *event) {
		_, _ = kept.Write(line) // an error stays until Flush
		_ = kept.WriteByte('\n')
		s.mu.Lock()
		defer s.mu.Unlock()
		if e == nil {
			v.say("%s\n", line)
			return
		}
		v.see(e)
	})
	stop()
	return v.ok, errors.Join(err, kept.Flush(), f.Close())
}

// watching is what of the tests is told.
type watching struct {
	quiet   bool // failures only
	verbose bool // also what tests print that pass
	of      int  // functions of tests in all; 0: not known
}

type watcher struct {
	watching
	say      func(format string, a ...any)
	ok       bool
	output   map[string][]string // of what has not ended
	tests    map[string]int      // that have passed, by package
	running  map[string]time.Time
	ended    int // functions of tests
	packages int // that have ended
}

func (v *watcher) see(e *event) {
	name := e.name()
	v.keepsRunning(e, name)
	switch e.Action {
	case "output", "build-output":
		if v.verbose && !strings.HasPrefix(e.Output, "=== ") {
			v.say("%s", e.Output)
		}
		v.output[name] = append(v.output[name], e.Output)
		return
	case "pass":
		if e.Test != "" {
			v.tests[e.Package]++
		} else if !v.quiet && v.tests[e.Package] > 0 {
			v.say("ok    %6.1f s  %5d  %s\n", e.Elapsed, v.tests[e.Package], short(e.Package))
		}
	case "fail", "build-fail":
		v.ok = false
		v.say("FAIL  %6.1f s  %s\n", e.Elapsed, short(name))
		if !v.verbose { // else it has been printed
			v.tell(name)
		}
		if e.Test == "" && !v.verbose {
			v.unended(e.of())
		}
	case "skip":
	default:
		return
	}
	delete(v.output, name)
}

// keepsRunning notes which functions of tests run, and counts those that have ended.
func (v *watcher) keepsRunning(e *event, name string) {
	if strings.Contains(e.Test, "/") {
		return
	}
	switch e.Action {
	case "start", "run", "cont":
		v.running[name] = time.Now()
	case "pause":
		delete(v.running, name)
	case "pass", "fail", "skip":
		delete(v.running, name)
		if e.Test == "" {
			v.packages++
		} else {
			v.ended++
		}
	}
}

// far says how many tests have ended, and which has run for longest.
func (v *watcher) far() string {
	of := ""
	if v.of > 0 {
		of = fmt.Sprintf(" of %d", v.of)
	}
	text := fmt.Sprintf("%d%s tests and %d packages have ended", v.ended, of, v.packages)
	oldest := slices.MinFunc(append(slices.Collect(maps.Keys(v.running)), ""), func(a, b string) int {
		return cmp.Or(boolean(!strings.Contains(a, " "))-boolean(!strings.Contains(b, " ")), v.running[a].Compare(v.running[b]), cmp.Compare(a, b))
	})
	if oldest == "" {
		return text
	}
	return text + fmt.Sprintf("; %s runs for %.0f s", short(oldest), time.Since(v.running[oldest]).Seconds())
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
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
