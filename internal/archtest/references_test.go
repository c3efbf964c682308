package archtest

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// defined are the numbers that a package gives its own invariants, in its doc.go.
var defined = map[string][]string{
	"internal/blame": {"E1", "E3", "E4", "E5", "E6"},
	"pkg/prefill":    {"A1", "A2"},
}

// made are pages that a command writes, and that are not kept.
var made = map[string]string{
	".run/bench/path.md": "make bench writes it",
}

var (
	// reference is a number of a row, or a section.
	reference = regexp.MustCompile(`\b[A-E][0-9]{1,2}\b|§ ?[0-9.]*`)
	// document is a page by its name, with the folders that are given.
	document = regexp.MustCompile(`[\w./-]*\w\.md\b`)
	address  = regexp.MustCompile(`https?://\S+`)
	// goFile is a Go file that a page names, by its path or by its name alone.
	goFile = regexp.MustCompile("`([\\w./-]*\\w\\.go)`")
)

// guides are the pages that say which files a change touches.
var guides = []string{"ARCHITECTURE.md", "CONTRIBUTING.md"}

// foreign returns references in comments and in Markdown to what the repository does not
// contain: rows, sections and pages of something else. A reader cannot look them up.
func foreign(t *tree, fsys fs.FS) []string {
	var out []string
	check := func(at, dir, text string) {
		text = address.ReplaceAllString(text, "")
		for _, r := range reference.FindAllString(text, -1) {
			if !slices.Contains(defined[dir], r) {
				out = append(out, fmt.Sprintf("%s: refers to %s, which is defined nowhere: cite a rule of docs/behaviour.md or docs/engines.md, or say it", at, r))
			}
		}
		for _, d := range document.FindAllString(text, -1) {
			if !there(fsys, dir, d) && made[d] == "" {
				out = append(out, fmt.Sprintf("%s: refers to %s, which is not there", at, d))
			}
		}
	}
	t.files(func(s *source) {
		for _, g := range s.ast.Comments {
			for _, c := range g.List {
				check(t.at(c), path.Dir(s.path), c.Text)
			}
		}
	})
	err := eachPage(fsys, func(p, text string) {
		if slices.Contains(strings.Split(p, "/"), "testdata") {
			return
		}
		for i, line := range strings.Split(text, "\n") {
			check(fmt.Sprintf("%s:%d", p, i+1), path.Dir(p), line)
		}
	})
	if err != nil {
		out = append(out, err.Error())
	}
	return out
}

// there reports whether a page is in the tree: from the root, from docs, or from the folder
// of the text that names it.
func there(fsys fs.FS, dir, page string) bool {
	for _, from := range []string{".", "docs", dir} {
		if _, err := fs.Stat(fsys, path.Join(from, page)); err == nil {
			return true
		}
	}
	return false
}

// astray returns the Go files that a page names and that the tree does not have.
func astray(t *tree, page, text string) []string {
	known := map[string]bool{}
	t.files(func(s *source) { known[s.path], known[path.Base(s.path)] = true, true })
	var out []string
	for i, line := range strings.Split(text, "\n") {
		for _, m := range goFile.FindAllStringSubmatch(line, -1) {
			if !known[m[1]] {
				out = append(out, fmt.Sprintf("%s:%d: names the file %s, which is not there", page, i+1, m[1]))
			}
		}
	}
	return out
}

func TestGuidesNameFilesThatAreThere(t *testing.T) {
	tr := house(t)
	for _, page := range guides {
		text, err := os.ReadFile("../../" + page)
		require.NoError(t, err)
		require.Regexp(t, goFile, string(text), page)
		obey(t, astray(tr, page, string(text)))
	}
}

func TestNothingRefersToWhatIsNotHere(t *testing.T) {
	obey(t, foreign(house(t), os.DirFS("../..")))
}

func TestForeignReferencesAreSeen(t *testing.T) {
	tr := madeUp(t, map[string]string{
		"pkg/a/a.go":              "// As row C4 has it (§1.5 of x.md), docs/y.md, y.md and https://x.y/C5/z.md.\npackage a",
		"internal/blame/blame.go": "// E1 is ours, E2 is not.\npackage blame",
		"pkg/b/b.go":              "package b\n\nconst x = \"C4 §1\" // C400, H100 and XC4 are words",
	})
	pages := fstest.MapFS{
		"docs/y.md":     {Data: []byte("see [y](y.md) and ../Z.md\nB6")},
		"testdata/z.md": {Data: []byte("C1")},
	}
	const nowhere = ", which is defined nowhere: cite a rule of docs/behaviour.md or docs/engines.md, or say it"
	require.Equal(t, []string{
		"internal/blame/blame.go:1: refers to E2" + nowhere,
		"pkg/a/a.go:1: refers to C4" + nowhere,
		"pkg/a/a.go:1: refers to §1.5" + nowhere,
		"pkg/a/a.go:1: refers to x.md, which is not there",
		"docs/y.md:1: refers to ../Z.md, which is not there",
		"docs/y.md:2: refers to B6" + nowhere,
	}, foreign(tr, pages))
	require.Equal(t, []string{
		"x.md:2: names the file pkg/a/b.go, which is not there",
		"x.md:2: names the file c.go, which is not there",
	}, astray(tr, "x.md", "`a.go`, `pkg/b/b.go`, z.go\n`pkg/a/b.go` and `c.go`, `m_*.go`"))
}
