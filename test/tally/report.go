package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

const mostLines = 40 // of a failed test's output, and of the race detector's

// report prints the table of the files and returns whether all went well.
func report(files []string, title string, slowest int, anyFile bool, w io.Writer) (ok bool, err error) {
	ok = true
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintf(table, "%s\tpassed\tfailed\tskipped\ttook\n", title)
	var details strings.Builder
	var passed, failed, skipped int
	took := map[string]float64{}
	for _, file := range files {
		r, err := readFile(file)
		if err != nil {
			return false, err
		}
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		_, _ = fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\n", name, r.passed, len(r.failed), len(r.skipped), r.last.Sub(r.first).Round(time.Second))
		ok = ok && len(r.failed) == 0 && (anyFile || r.passed > 0)
		passed, failed, skipped = passed+r.passed, failed+len(r.failed), skipped+len(r.skipped)
		maps.Copy(took, r.took)
		r.describe(name, &details)
	}
	if err := table.Flush(); err != nil {
		return false, err
	}
	details.WriteString(slowestOf(took, slowest))
	_, err = fmt.Fprintf(w, "%s\n%d passed, %d failed, %d skipped\n", details.String(), passed, failed, skipped)
	return ok && passed > 0, err
}

func readFile(name string) (*result, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	return read(f)
}

// describe writes what failed, with the end of its output, and what was skipped.
func (r *result) describe(run string, w *strings.Builder) {
	for _, t := range r.failed {
		fmt.Fprintf(w, "\n%s failed: %s\n", run, short(t))
		for _, line := range worth(r.output[t]) {
			w.WriteString("    " + line)
		}
	}
	if len(r.races.lines) > 0 {
		fmt.Fprintf(w, "\n%s races:\n", run)
		for _, line := range r.races.lines[:min(mostLines, len(r.races.lines))] {
			w.WriteString("    " + line)
		}
	}
	for _, t := range r.skipped {
		fmt.Fprintf(w, "\n%s skipped: %s", run, short(t))
	}
	if len(r.skipped) > 0 {
		w.WriteString("\n")
	}
}

// worth returns what says most of a failure: how a process died, or else the end.
func worth(output []string) []string {
	for i, line := range output {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return output[i:min(i+mostLines, len(output))]
		}
	}
	return output[max(0, len(output)-mostLines):]
}

// slowestOf returns a line for each of the n slowest tests.
func slowestOf(took map[string]float64, n int) string {
	names := slices.SortedFunc(maps.Keys(took), func(a, b string) int {
		return cmp.Or(cmp.Compare(took[b], took[a]), cmp.Compare(a, b))
	})
	var b strings.Builder
	for i, name := range names[:min(n, len(names))] {
		if i == 0 {
			b.WriteString("\nslowest, in s, beside others:\n")
		}
		fmt.Fprintf(&b, "%6.1f  %s\n", took[name], short(name))
	}
	return b.String()
}

// short is a name without this module's path.
func short(name string) string { return strings.TrimPrefix(name, "github.com/seed-60ae5743/baton/") }
