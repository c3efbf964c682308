package archtest

import (
	"fmt"
	"go/build"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

const decisionPages = "docs/decisions"

// misfiled returns what is wrong with the pages of decisions: a number that is skipped or
// used twice, a page whose title has another number, or one that decides nothing.
func misfiled(fsys fs.FS) []string {
	pages, err := fs.Glob(fsys, decisionPages+"/*.md")
	if err != nil || len(pages) == 0 {
		return []string{decisionPages + ": no page was found"}
	}
	var out []string
	for i, p := range pages {
		text, err := fs.ReadFile(fsys, p)
		number := fmt.Sprintf("%04d", i+1)
		switch {
		case err != nil:
			out = append(out, err.Error())
		case !strings.HasPrefix(path.Base(p), number+"-"):
			out = append(out, fmt.Sprintf("%s: the page of number %s comes here: pages are never struck, one that no longer holds says so", p, number))
		case !regexp.MustCompile(`^# ` + number + `\.? `).Match(text):
			out = append(out, fmt.Sprintf("%s: its title does not begin with %s", p, number))
		case !regexp.MustCompile(`(?m)^\*\*(Decision|Answer|Rule|Status)\b`).Match(text):
			out = append(out, fmt.Sprintf("%s: does not say what was decided", p))
		}
	}
	return out
}

// placeholders stand for any test.
var placeholders = map[string]bool{"TestX": true, "TestY": true}

// gone returns the tests that a page names and that are not there. A pattern (TestX.*) names
// no test.
func gone(page, text string, tests map[string]bool) []string {
	var out []string
	for i, line := range strings.Split(text, "\n") {
		for _, at := range testNamed.FindAllStringIndex(line, -1) {
			name, rest := line[at[0]:at[1]], line[at[1]:]
			if !tests[name] && !placeholders[name] && !strings.HasPrefix(rest, ".*") {
				out = append(out, fmt.Sprintf("%s:%d: there is no %s", page, i+1, name))
			}
		}
	}
	return out
}

func TestDecisionsAreFiledByNumber(t *testing.T) { obey(t, misfiled(os.DirFS("../.."))) }

func TestPagesNameTestsThatAreThere(t *testing.T) {
	tests := testNames(house(t))
	require.NoError(t, eachPage(os.DirFS("../.."), func(p, text string) { obey(t, gone(p, text, tests)) }))
}

// TestWhatIsSaidOfGeneratedCodecsHolds looks at the version that the page on the codec speaks
// of: the module ships code that writes ext_proc's messages, and none that reads them.
func TestWhatIsSaidOfGeneratedCodecsHolds(t *testing.T) {
	const module, page = "github.com/envoyproxy/go-control-plane/envoy", decisionPages + "/0005-codec-and-heap-floor.md"
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	m := regexp.MustCompile(`\t` + module + ` (v\S+)\n`).FindSubmatch(mod)
	require.NotNil(t, m)
	text, err := os.ReadFile("../../" + page)
	require.NoError(t, err)
	require.Contains(t, string(text), "go-control-plane "+string(m[1])+" ships it", "read what the new version ships, then raise the version on %s", page)

	p, err := build.Import(module+"/service/ext_proc/v3", "../..", build.FindOnly)
	require.NoError(t, err)
	generated, err := os.ReadFile(filepath.Join(p.Dir, "external_processor_vtproto.pb.go"))
	require.NoError(t, err)
	require.Contains(t, string(generated), "//go:build vtprotobuf\n")
	require.Contains(t, string(generated), ") MarshalVTStrict(")
	require.Contains(t, string(generated), ") SizeVT(")
	require.NotContains(t, string(generated), ") UnmarshalVT")
}

func TestMisfiledDecisionsAreSeen(t *testing.T) {
	page := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	require.Equal(t, []string{decisionPages + ": no page was found"}, misfiled(fstest.MapFS{}))
	good := fstest.MapFS{
		decisionPages + "/0001-a.md": page("# 0001 A\n\n**Decision.** So."),
		decisionPages + "/0002-b.md": page("# 0002. B\n\n**Rule.** So."),
	}
	require.Empty(t, misfiled(good))
	require.Equal(t, []string{
		decisionPages + "/0002-b.md: its title does not begin with 0002",
		decisionPages + "/0003-c.md: does not say what was decided",
		decisionPages + "/0005-d.md: the page of number 0004 comes here: pages are never struck, one that no longer holds says so",
	}, misfiled(fstest.MapFS{
		decisionPages + "/0001-a.md": good[decisionPages+"/0001-a.md"],
		decisionPages + "/0002-b.md": page("# 0003 B\n\n**Decision.** So."),
		decisionPages + "/0003-c.md": page("# 0003 C\n\nThe **Decision** is open."),
		decisionPages + "/0005-d.md": page("# 0005 D\n\n**Decision.** So."),
	}))
	require.Equal(t, []string{"p:2: there is no TestB"}, gone("p", "TestA, TestX\nTestB, TestC.*", map[string]bool{"TestA": true}))
}
