package archtest

import (
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// rulePages are the pages of numbered rules. Comments cite one by page and name.
var rulePages = []string{"docs/behaviour.md", "docs/engines.md"}

var (
	ruleName = regexp.MustCompile(`^\d+\. <a id="([a-z0-9-]+)"></a>\*\*([a-z0-9-]+)\*\*[.:] `)
	ruleItem = regexp.MustCompile(`^\d+\. `)
	// Several rules of one page are cited as page#one, #two and #three.
	citation  = regexp.MustCompile(`(docs/(?:behaviour|engines)\.md)(#[A-Za-z0-9_-]*(?:(?:,| and|, and| with| before) #[a-z0-9-]+)*)`)
	cited     = regexp.MustCompile(`#[A-Za-z0-9_-]*`)
	testNamed = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`)
)

// cellWidth is how long a cell of a table may be: a reader sees a row on one screen.
const cellWidth = 200

// wide returns the cells of a page's tables that are too long to be read in one.
func wide(page, text string) []string {
	var out []string
	for i, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for _, cell := range strings.Split(line, "|") {
			if n := utf8.RuneCountInString(strings.TrimSpace(cell)); n > cellWidth {
				out = append(out, fmt.Sprintf("%s:%d: a cell of %d characters, at most %d: make it two rows, or prose below the table", page, i+1, n, cellWidth))
			}
		}
	}
	return out
}

// rules returns the names that a page gives its rules, and what is wrong with it: a rule
// without a name, two of one name, one that no test shows, a test that is not there.
func rules(page, text string, tests map[string]bool) (names map[string]bool, faults []string) {
	names = map[string]bool{}
	name, shown := "", true
	end := func() {
		if name != "" && !shown {
			faults = append(faults, fmt.Sprintf("%s#%s: names no test, scenario or file that shows it", page, name))
		}
		name = ""
	}
	for line := range strings.Lines(text) {
		if line == "\n" || strings.HasPrefix(line, "#") {
			end()
		}
		if ruleItem.MatchString(line) {
			end()
			m := ruleName.FindStringSubmatch(line)
			switch {
			case m == nil || m[1] != m[2]:
				faults = append(faults, fmt.Sprintf("%s: %.40s…: a rule begins with its anchor and, in bold, its name", page, line))
			case names[m[1]]:
				faults = append(faults, fmt.Sprintf("%s#%s: two rules of this name", page, m[1]))
			default:
				names[m[1]], name, shown = true, m[1], false
			}
		}
		for _, tt := range testNamed.FindAllString(line, -1) {
			shown = true
			if !tests[tt] {
				faults = append(faults, fmt.Sprintf("%s#%s: there is no %s", page, name, tt))
			}
		}
		shown = shown || strings.Contains(line, "internal/") || strings.Contains(line, "pkg/") || strings.Contains(line, "test/")
	}
	end()
	return names, faults
}

// uncited returns citations of rules that no page has: in comments, and in Markdown.
func uncited(t *tree, fsys fs.FS, known map[string]bool) []string {
	var out []string
	check := func(at, text string) {
		for _, c := range citation.FindAllStringSubmatch(strings.Join(strings.Fields(text), " "), -1) {
			for _, name := range cited.FindAllString(c[2], -1) {
				if !known[c[1]+name] {
					out = append(out, fmt.Sprintf("%s: cites %s, which is no rule", at, c[1]+name))
				}
			}
		}
	}
	t.files(func(s *source) {
		for _, g := range s.ast.Comments {
			check(t.at(g), strings.ReplaceAll(g.Text(), "\n", " "))
		}
	})
	if err := eachPage(fsys, check); err != nil {
		out = append(out, err.Error())
	}
	return out
}

// eachPage calls f with the path and the text of every Markdown page.
func eachPage(fsys fs.FS, f func(p, text string)) error {
	return fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && d.Name()[0] == '.' {
			return fs.SkipDir
		}
		if d.IsDir() || path.Ext(p) != ".md" {
			return nil
		}
		text, err := fs.ReadFile(fsys, p)
		f(p, string(text))
		return err
	})
}

// testNames are the tests and fuzz tests of a tree.
func testNames(t *tree) map[string]bool {
	names := map[string]bool{}
	t.files(func(s *source) {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test && f.Recv == nil {
				names[f.Name.Name] = true
			}
		}
	})
	return names
}

func TestRulesHaveNamesAndTestsAndAreCitedByThem(t *testing.T) {
	tr, known := house(t), map[string]bool{}
	tests := testNames(tr)
	for _, page := range rulePages {
		text, err := os.ReadFile("../../" + page)
		require.NoError(t, err)
		names, faults := rules(page, string(text), tests)
		require.NotEmpty(t, names, page)
		obey(t, faults)
		for n := range names {
			known[page+"#"+n] = true
		}
	}
	obey(t, uncited(tr, os.DirFS("../.."), known))
}

func TestTablesAreNarrow(t *testing.T) {
	seen := 0
	require.NoError(t, eachPage(os.DirFS("../.."), func(p, text string) {
		obey(t, wide(p, text))
		seen++
	}))
	require.Greater(t, seen, 20)
}

// unsaid are phrases that the glossary says not to say and that mean nothing else here.
var unsaid = []string{
	"fresh pick", "re-pick", "hand-over", "transfer parameters", "incarnation", "zombie", "quarantined",
	"half open", "concurrent mode", "synchronous way", "prefix hit",
}

const glossary = "\n## Glossary\n"

// said returns where a page, up to its glossary, says one of them.
func said(page, text string) []string {
	var out []string
	text, _, _ = strings.Cut(text, glossary)
	for i, line := range strings.Split(text, "\n") {
		for _, phrase := range unsaid {
			if begins(strings.ToLower(line), phrase) {
				out = append(out, fmt.Sprintf("%s:%d: says %q: the glossary of ARCHITECTURE.md has the word for it", page, i+1, phrase))
			}
		}
	}
	return out
}

// begins reports whether a line has the phrase at the beginning of a word: "score-picker"
// does not say "re-pick".
func begins(line, phrase string) bool {
	for at := 0; ; at++ {
		i := strings.Index(line[at:], phrase)
		if i < 0 {
			return false
		}
		at += i
		before, _ := utf8.DecodeLastRuneInString(line[:at])
		if at == 0 || !unicode.IsLetter(before) {
			return true
		}
	}
}

func TestPagesSayTheWordsOfTheGlossary(t *testing.T) {
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	require.NoError(t, err)
	_, words, found := strings.Cut(string(text), glossary)
	require.True(t, found)
	for _, phrase := range unsaid {
		require.Contains(t, words, phrase)
	}
	require.NoError(t, eachPage(os.DirFS("../.."), func(p, text string) { obey(t, said(p, text)) }))
}

// readmeLines is how long the page that everybody reads first may be.
const readmeLines = 90

// readmeParts are what it says after what Baton is, in this order.
var readmeParts = []string{"\n**Why.**\n", "\n## See it\n", "\n## Use it\n", "\n## Read on\n"}

// unread returns what is wrong with the first page.
func unread(text string) []string {
	var out []string
	if n := strings.Count(text, "\n"); n > readmeLines {
		out = append(out, fmt.Sprintf("README.md: %d lines, at most %d: docs has room", n, readmeLines))
	}
	if n := strings.Count(text, "\n## "); n != len(readmeParts)-1 {
		out = append(out, fmt.Sprintf("README.md: %d sections, expected %d", n, len(readmeParts)-1))
	}
	rest := text
	for _, part := range readmeParts {
		_, after, found := strings.Cut(rest, part)
		if !found {
			return append(out, fmt.Sprintf("README.md: expected %s, in the order what, why, see it, use it, read on", strings.TrimSpace(part)))
		}
		rest = after
	}
	return out
}

func TestTheReadmeIsShortAndInOrder(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	obey(t, unread(string(text)))
}

func TestLawsOfRulesAreSeenToFail(t *testing.T) {
	fits := strings.Repeat("ä", cellWidth)
	require.Empty(t, wide("p", "| "+fits+" | a |\n"+fits+fits))
	require.Equal(t, []string{"p:2: a cell of 201 characters, at most 200: make it two rows, or prose below the table"}, wide("p", "\n| a | "+fits+"ä |"))

	require.Equal(t, []string{`p:2: says "fresh pick": the glossary of ARCHITECTURE.md has the word for it`},
		said("p", "`baton_fresh_picks_total`\nA Fresh pick\n"+glossary+"fresh pick"))
	require.Empty(t, said("p", "`max-score-picker`"))
	require.Len(t, said("p", "Re-pick\na max-score-picker has its re-pick\n(re-picked)"), 3)

	page := "# B\n" + strings.Join(readmeParts, "x")
	require.Empty(t, unread(page))
	require.Equal(t, []string{"README.md: 4 sections, expected 3", "README.md: expected ## See it, in the order what, why, see it, use it, read on"},
		unread(strings.Replace(page, "## See it", "## Look", 1)+"\n## More\n"))
	require.Equal(t, []string{"README.md: 100 lines, at most 90: docs has room"}, unread(page+strings.Repeat("\n", 100-strings.Count(page, "\n"))))

	const good = "1. <a id=\"one\"></a>**one**. A rule.\n   *Shown by* TestA.\n2. <a id=\"two\"></a>**two**. Another: pkg/a.\n"
	names, faults := rules("p", good, map[string]bool{"TestA": true})
	require.Equal(t, map[string]bool{"one": true, "two": true}, names)
	require.Empty(t, faults)
	_, faults = rules("p", strings.ReplaceAll(good, "two", "one")+"3. **three**. None.\n4. <a id=\"four\"></a>**four**. None.\n\nTestB, of no rule\n", map[string]bool{})
	require.Equal(t, []string{
		"p#one: there is no TestA",
		"p#one: two rules of this name",
		"p: 3. **three**. None.\n…: a rule begins with its anchor and, in bold, its name",
		"p#four: names no test, scenario or file that shows it",
		"p#: there is no TestB",
	}, faults)

	const text = "// docs/engines.md#one, and docs/engines.md#on, #one and\n// #tow\npackage a"
	tr := madeUp(t, map[string]string{"pkg/a/a.go": text})
	pages := fstest.MapFS{"docs/x.md": {Data: []byte("docs/behaviour.md#one and a docs/behaviour.md of its own")}}
	require.Equal(t, []string{
		"pkg/a/a.go:1: cites docs/engines.md#on, which is no rule",
		"pkg/a/a.go:1: cites docs/engines.md#tow, which is no rule",
		"docs/x.md: cites docs/behaviour.md#one, which is no rule",
	}, uncited(tr, pages, map[string]bool{"docs/engines.md#one": true}))
}
