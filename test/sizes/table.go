package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// The kinds, in the order of the table.
const (
	product = "product"
	tooling = "tooling"
	tests   = "tests"
)

var kinds = []string{product, tooling, tests}

// total stands in the place of a package in the row of a kind's sum.
const total = "total"

// row names a row of the table.
type row struct{ kind, pkg string }

// table has the lines of each row, without the sums.
type table map[row]int

// tabulate adds up files by package; linked are the packages of the product.
func tabulate(files map[string]lines, linked map[string]bool) table {
	t := table{}
	for file, is := range files {
		r := row{tooling, path.Dir(file)}
		switch {
		case strings.HasSuffix(file, "_test.go"):
			r.kind = tests
		case linked[r.pkg] && !is.apart:
			r.kind = product
		}
		t[r] += is.n
	}
	return t
}

func (t table) rows() []row {
	return slices.SortedFunc(maps.Keys(t), func(a, b row) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.kind), slices.Index(kinds, b.kind)), cmp.Compare(a.pkg, b.pkg))
	})
}

func (t table) sum(kind string) int {
	n := 0
	for r, lines := range t {
		if r.kind == kind {
			n += lines
		}
	}
	return n
}

const head = "# Lines of Go that are neither blank nor comment (doc.go). `make sizes` writes this file; the\n" +
	"# commit that changes it says why.\n"

// String is the text of sizes.txt.
func (t table) String() string {
	var b strings.Builder
	b.WriteString(head)
	for _, r := range t.rows() {
		fmt.Fprintf(&b, "%s  %s  %d\n", r.kind, r.pkg, t[r])
	}
	b.WriteString("\n")
	for _, kind := range kinds {
		fmt.Fprintf(&b, "%s  %s  %d\n", kind, total, t.sum(kind))
	}
	return b.String()
}

// parse reads what String has written. A sum that is not that of its rows is an error: two
// branches have met in the file.
func parse(text string) (table, error) {
	t, sums := table{}, map[string]int{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 3 || !slices.Contains(kinds, f[0]) {
			return nil, fmt.Errorf("line %d: %q: expected a kind, a package and a number", i+1, line)
		}
		n, err := strconv.Atoi(f[2])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		r := row{f[0], f[1]}
		if r.pkg == total {
			sums[r.kind] = n
			continue
		}
		if _, twice := t[r]; twice {
			return nil, fmt.Errorf("line %d: %s %s comes twice", i+1, r.kind, r.pkg)
		}
		t[r] = n
	}
	var errs []error
	for _, kind := range kinds {
		if sum := t.sum(kind); sums[kind] != sum {
			errs = append(errs, fmt.Errorf("%s: the total is %d, and its rows have %d", kind, sums[kind], sum))
		}
	}
	return t, errors.Join(errs...)
}

// changes returns what of now is not as t says, by more than may be. With slack 0 it is all.
func (t table) changes(now table, slack func(lines int) int) []string {
	all := maps.Clone(t)
	maps.Copy(all, now)
	var out []string
	for _, r := range all.rows() {
		was, had := t[r]
		is, has := now[r]
		switch {
		case !had:
			out = append(out, fmt.Sprintf("%s  %s: new, %d lines", r.kind, r.pkg, is))
		case !has:
			out = append(out, fmt.Sprintf("%s  %s: gone, it had %d lines", r.kind, r.pkg, was))
		case max(is-was, was-is) > slack(was):
			out = append(out, fmt.Sprintf("%s  %s: %d lines, it had %d", r.kind, r.pkg, is, was))
		}
	}
	return out
}

// tolerance is by how many lines a package may be off before its row has to change.
func tolerance(lines int) int { return max(100, lines/50) }

// exactly tolerates nothing.
func exactly(int) int { return 0 }
