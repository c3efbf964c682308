// Command tally reads what `go test -json` has said, one file for each version of
// Envoy, and prints a table of versions: how many tests passed, failed and were
// skipped, then what failed, and what was skipped with its reason. It ends with 1
// where a test failed or a version ran none. A test with subtests is counted by
// them.
//
//	tally .run/envoys/1.36.4.json .run/envoys/1.40.0.json
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	ok, err := run(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// event is one line of go test -json.
type event struct{ Action, Package, ImportPath, Test, Output string }

// result is what one version did, as names of tests.
type result struct {
	passed  int
	failed  []string
	skipped []string // with the reason
	output  map[string][]string
}

const lastLines = 40 // of a failed test's output

func run(files []string, w io.Writer) (ok bool, err error) {
	ok = len(files) > 0
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "envoy\tpassed\tfailed\tskipped")
	var details strings.Builder
	for _, name := range files {
		version := strings.TrimSuffix(filepath.Base(name), ".json")
		r, err := read(name)
		if err != nil {
			return false, err
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\n", version, r.passed, len(r.failed), len(r.skipped))
		ok = ok && len(r.failed) == 0 && r.passed > 0
		for _, t := range r.failed {
			fmt.Fprintf(&details, "\n%s failed: %s\n", version, t)
			for _, line := range r.output[t][max(0, len(r.output[t])-lastLines):] {
				details.WriteString("    " + line)
			}
		}
		for _, t := range r.skipped {
			fmt.Fprintf(&details, "\n%s skipped: %s", version, t)
		}
	}
	if err := table.Flush(); err != nil {
		return false, fmt.Errorf("tally: %w", err)
	}
	_, err = fmt.Fprintln(w, details.String())
	return ok, err
}

func read(name string) (*result, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("tally: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	return count(f)
}

// said is how a test says why it is skipped.
var said = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)`)

// count reads one run. A package that fails without a failed test did not build,
// or ended before its time: it counts as one.
func count(in io.Reader) (*result, error) {
	r := &result{output: map[string][]string{}}
	parents, broken := map[string]bool{}, map[string]bool{}
	s := bufio.NewScanner(in)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		var e event
		if json.Unmarshal(s.Bytes(), &e) != nil {
			continue // a line of go's own between
		}
		pkg := e.Package + e.ImportPath // the latter of a build
		name := strings.TrimSuffix(pkg+" "+e.Test, " ")
		if i := strings.LastIndexByte(e.Test, '/'); i > 0 {
			parents[pkg+" "+e.Test[:i]] = true
		}
		switch e.Action {
		case "output", "build-output":
			r.output[name] = append(r.output[name], e.Output)
		case "pass":
			if e.Test != "" && !parents[name] {
				r.passed++
			}
		case "fail":
			if e.Test == "" && !broken[pkg] || e.Test != "" && !parents[name] {
				r.failed = append(r.failed, name)
			}
			broken[pkg] = true
		case "skip":
			if e.Test != "" {
				r.skipped = append(r.skipped, name+": "+reason(r.output[name]))
			}
		}
	}
	slices.Sort(r.failed)
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("tally: %w", err)
	}
	return r, nil
}

func reason(output []string) string {
	for _, line := range output {
		if m := said.FindStringSubmatch(line); m != nil {
			return strings.TrimSpace(m[1])
		}
	}
	return "no reason given"
}
