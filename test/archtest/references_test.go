package archtest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// defined are the numbers that a package gives its own invariants, in its doc.go.
var defined = map[string][]string{
	"internal/blame": {"E1", "E3", "E4", "E5", "E6", "E7"},
	"pkg/prefill":    {"A1", "A2"},
}

// made are pages that a command writes, and that are not kept.
var made = map[string]string{
	".run/bench/path.md": "make bench writes it",
	"path.md":            "the same",
	"routing.md":         "make bench-routing writes it",
	"drill.md":           "the same, with -drill",
}

var (
	// reference is a number of a row, or a section.
	reference = regexp.MustCompile(`\b[A-E][0-9]{1,2}\b|§ ?[0-9.]*|\b(?:[Rr]ow|[Ss]ection|[Cc]hapter|[Ii]ssue) #?[0-9][0-9.]*`)
	// standard are documents of others whose sections anybody can look up.
	standard = regexp.MustCompile(`\bRFC [0-9]+|endpoint picker protocol`)
	// document is a page by its name, with the folders that are given.
	document = regexp.MustCompile(`[\w./-]*\w\.md\b`)
	address  = regexp.MustCompile(`https?://\S+`)
	// goFile is a Go file that a page names, by its path or by its name alone.
	goFile = regexp.MustCompile("`([\\w./-]*\\w\\.go)`")
)

// guides are the pages that say which files a change touches.
var guides = []string{"ARCHITECTURE.md", "CONTRIBUTING.md"}

// foreign returns references in comments, in Markdown and in what the program says to what
// the repository does not contain: rows, sections and pages of something else. A reader
// cannot look them up.
func foreign(t *tree, fsys fs.FS) []string {
	var out []string
	check := func(at, dir, text string) {
		text = address.ReplaceAllString(text, "")
		for _, r := range reference.FindAllString(text, -1) {
			if !slices.Contains(defined[dir], r) && !standard.MatchString(text) {
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
			check(t.at(g), path.Dir(s.path), g.Text())
		}
		for _, l := range texts(s) {
			check(t.at(l), path.Dir(s.path), l.Value)
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
	err = errors.Join(err, eachRemark(fsys, check))
	if err != nil {
		out = append(out, err.Error())
	}
	return out
}

// texts are the strings of a file that a user may read: those of its code, and not of tests.
func texts(s *source) []*ast.BasicLit {
	var out []*ast.BasicLit
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && !s.test {
			out = append(out, l)
		}
		return true
	})
	return out
}

// others are files that nobody here has written by hand.
var others = map[string]bool{".json": true, ".sum": true, ".svg": true}

// eachRemark calls f with every comment of the files that are neither Go nor Markdown:
// scenarios, configurations, scripts. A comment is what follows a # at the beginning of a
// line or after a space.
func eachRemark(fsys fs.FS, f func(at, dir, text string)) error {
	return fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "captures" || p != "." && d.Name()[0] == '.') {
			return fs.SkipDir
		}
		ext := path.Ext(p)
		if !d.Type().IsRegular() || ext == ".go" || ext == ".md" || others[ext] {
			return nil
		}
		text, err := fs.ReadFile(fsys, p)
		if !utf8.Valid(text) { // a program, or captured bytes
			return err
		}
		for i, line := range strings.Split(string(text), "\n") {
			if _, remark, found := strings.Cut(" "+line, " #"); found {
				f(fmt.Sprintf("%s:%d", p, i+1), path.Dir(p), remark)
			}
		}
		return err
	})
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
		"pkg/b/b.go":              "package b\n\nconst x = \"C4 of w.md\" // C400, H100 and XC4 are words",
		"pkg/b/b_test.go":         "package b\n\nconst y = \"C4 of w.md\"",
		"pkg/b/d.go":              "// See RFC 9110,\n// section 7.6, and section Blame.\npackage b\n\n// As section 7 says\nvar x int",
	})
	pages := fstest.MapFS{
		"docs/y.md":           {Data: []byte("see [y](y.md) and ../Z.md\nB6")},
		"testdata/z.md":       {Data: []byte("C1")},
		"testdata/a":          {Data: []byte("# Row 6 has it.\nC1\nmode: x # y.md, v.md")},
		"testdata/b":          {Data: []byte("# C1 \xff")},
		"testdata/captures/c": {Data: []byte("# C1")},
	}
	const nowhere = ", which is defined nowhere: cite a rule of docs/behaviour.md or docs/engines.md, or say it"
	require.Equal(t, []string{
		"internal/blame/blame.go:1: refers to E2" + nowhere,
		"pkg/a/a.go:1: refers to C4" + nowhere,
		"pkg/a/a.go:1: refers to §1.5" + nowhere,
		"pkg/a/a.go:1: refers to x.md, which is not there",
		"pkg/b/b.go:3: refers to C4" + nowhere,
		"pkg/b/b.go:3: refers to w.md, which is not there",
		"pkg/b/d.go:5: refers to section 7" + nowhere,
		"docs/y.md:1: refers to ../Z.md, which is not there",
		"docs/y.md:2: refers to B6" + nowhere,
		"testdata/a:1: refers to Row 6" + nowhere,
		"testdata/a:3: refers to v.md, which is not there",
	}, foreign(tr, pages))
	require.Equal(t, []string{
		"x.md:2: names the file pkg/a/b.go, which is not there",
		"x.md:2: names the file c.go, which is not there",
	}, astray(tr, "x.md", "`a.go`, `pkg/b/b.go`, z.go\n`pkg/a/b.go` and `c.go`, `m_*.go`"))
}
