package main

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// quoted is a number of lines on a page, if it can be compared behind the name of what has them.
var quoted = regexp.MustCompile("(?:(?:`([^`]+)`|\\[([^\\]]+)\\]\\([^)]*\\)),?(?:\\s+has)?\\s+(?i:some)\\s+)?([0-9][0-9,]*)\\s+lines\\b")

// told are numbers of lines that are not of this tree's Go, each with the reason.
var told = map[string]string{
	"docs/decisions/0013-answers-that-go-on.md: 460 lines":     "C, of a prototype that is not kept",
	"docs/decisions/0018-chat-templates.md: 220 lines":         "of testdata, when libraries were compared",
	"docs/decisions/0021-kubernetes.md: 270 lines":             "a prototype that was thrown away",
	"docs/decisions/0023-a-cluster-in-namespaces.md: 60 lines": "one type among others of a package",
}

// misquoted returns the numbers of lines on the pages of decisions that are off by more than a
// tenth, or that nobody can compare.
func misquoted(fsys fs.FS, files map[string]lines, told map[string]string) ([]string, error) {
	sizes := map[string]int{}
	for file, is := range files {
		sizes[file] = is.n
	}
	for r, n := range tabulate(files, nil) {
		if r.kind == tooling { // here all that is no test
			sizes[r.pkg] = n
		}
	}
	pages, err := fs.Glob(fsys, "docs/decisions/*.md")
	if err != nil {
		return nil, err
	}
	var out []string
	used := map[string]bool{}
	for _, page := range pages {
		text, err := fs.ReadFile(fsys, page)
		if err != nil {
			return nil, err
		}
		for _, m := range quoted.FindAllStringSubmatch(string(text), -1) {
			name, said := m[1]+m[2], m[3]+" lines"
			at := page + ": " + said
			says, err := strconv.Atoi(strings.ReplaceAll(m[3], ",", ""))
			is := sizes[name]
			switch {
			case told[at] != "":
				used[at] = true
			case err != nil:
				out = append(out, fmt.Sprintf("%s: %v", at, err))
			case name == "":
				out = append(out, at+": of what? Write NAME has some N lines, with the path of a package or file; or say in told why it cannot be compared")
			case is == 0:
				out = append(out, fmt.Sprintf("%s: there is no package and no Go file %s", at, name))
			case max(says-is, is-says)*10 > is:
				out = append(out, fmt.Sprintf("%s: %s has %d", at, name, is))
			}
		}
	}
	for at := range told {
		if !used[at] {
			out = append(out, at+": excused, and not there: strike the excuse")
		}
	}
	slices.Sort(out)
	return out, nil
}

func TestSizesThatDecisionsQuoteHold(t *testing.T) {
	files, err := count(os.DirFS(root))
	require.NoError(t, err)
	out, err := misquoted(os.DirFS(root), files, told)
	require.NoError(t, err)
	for _, o := range out {
		t.Error(o)
	}
}

func TestMisquotedSizesAreSeen(t *testing.T) {
	page := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	files := map[string]lines{"pkg/a/a.go": {n: 900}, "pkg/a/b.go": {n: 100}, "pkg/a/a_test.go": {n: 5000}}
	out, err := misquoted(fstest.MapFS{
		"docs/decisions/0001-a.md": page("It costs: `pkg/a` has some 1,100 lines, [pkg/a](../a.go), some\n910 lines, and `pkg/a/b.go` some 95 lines."),
		"docs/decisions/0002-b.md": page("`pkg/a`, some\n1,200 lines; some 2,000 lines. `pkg/b` has some 70 lines. `pkg/a` is long: 80 lines, 12 lines."),
		"docs/decisions/0003-c.md": page("Headlines, 3 outlines, lines."),
	}, files, map[string]string{"docs/decisions/0002-b.md: 12 lines": "for the test", "docs/decisions/0003-c.md: 3 lines": "for the test"})
	require.NoError(t, err)
	require.Equal(t, []string{
		"docs/decisions/0002-b.md: 1,200 lines: pkg/a has 1000",
		"docs/decisions/0002-b.md: 2,000 lines: of what? Write NAME has some N lines, with the path of a package or file; or say in told why it cannot be compared",
		"docs/decisions/0002-b.md: 70 lines: there is no package and no Go file pkg/b",
		"docs/decisions/0002-b.md: 80 lines: of what? Write NAME has some N lines, with the path of a package or file; or say in told why it cannot be compared",
		"docs/decisions/0003-c.md: 3 lines: excused, and not there: strike the excuse",
	}, out)
}
