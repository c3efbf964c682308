package archtest

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const dependenciesPage = "docs/decisions/0002-dependencies.md"

// requirement is a line of a require block: module, version, and what follows.
var requirement = regexp.MustCompile(`^\t?(?:require )?([^\s()]+\.[^\s()]+/\S+) (v\S+)( // indirect)?$`)

// dependencyRow is a row of the page's tables: module, version and its month.
var dependencyRow = regexp.MustCompile("^\\| `([^`]+)` \\| (v[^ ,]+), \\d{4}-\\d{2} \\|")

// unlisted compares the direct requirements of our go.mods, one behind the other, with the rows of the page.
func unlisted(mod, page string) []string {
	required, listed := map[string]string{}, map[string]string{}
	var out []string
	for line := range strings.Lines(mod) {
		m := requirement.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m != nil && m[3] == "" && m[1] != module {
			required[m[1]] = m[2]
		}
	}
	for line := range strings.Lines(page) {
		m := dependencyRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if _, twice := listed[m[1]]; twice {
			out = append(out, fmt.Sprintf("%s: two rows of %s", dependenciesPage, m[1]))
		}
		listed[m[1]] = m[2]
	}
	for _, m := range slices.Sorted(maps.Keys(required)) {
		if listed[m] != required[m] {
			out = append(out, fmt.Sprintf("%s: %s is required at %s, its row says %q: who adds or raises a module writes down why", dependenciesPage, m, required[m], listed[m]))
		}
	}
	for _, m := range slices.Sorted(maps.Keys(listed)) {
		if required[m] == "" {
			out = append(out, fmt.Sprintf("%s: a row of %s, which no go.mod of ours requires: strike it", dependenciesPage, m))
		}
	}
	return out
}

func TestEachRequirementHasARowOfTheDependencies(t *testing.T) {
	product, tests := bothModules(t)
	page, err := os.ReadFile("../../" + dependenciesPage)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(product, "\tgo.opentelemetry.io/otel/trace "), "go.mod is not read as it is written")
	obey(t, unlisted(product+tests, string(page)))
}

func TestRowsOfDependenciesAreSeenToFail(t *testing.T) {
	const mod = "module x.y/z\n\ngo 1.26\n\nrequire x.y/a v1.0.0\n\nrequire (\n\tx.y/b/v2 v2.1.0\n\tx.y/c v0.1.0 // indirect\n)\n"
	const page = "| module | version, of |\n| --- | --- |\n| `x.y/a` | v1.0.0, 2026-01 | why |\n| `x.y/b/v2` | v2.1.0, 2026-02 | why |\n"
	require.Empty(t, unlisted(mod, page))
	require.Equal(t, []string{
		dependenciesPage + `: x.y/b/v2 is required at v2.1.0, its row says "v2.0.0": who adds or raises a module writes down why`,
	}, unlisted(mod, strings.Replace(page, "v2.1.0", "v2.0.0", 1)))
	require.Equal(t, []string{
		dependenciesPage + `: x.y/a is required at v1.0.0, its row says "": who adds or raises a module writes down why`,
		dependenciesPage + ": a row of x.y/c, which no go.mod of ours requires: strike it",
	}, unlisted(mod, strings.Replace(page, "x.y/a", "x.y/c", 1)))
	require.Equal(t, []string{dependenciesPage + ": two rows of x.y/a"}, unlisted(mod, page+"| `x.y/a` | v1.0.0, 2026-01 | again |\n"))
}
