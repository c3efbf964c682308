package archtest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tooling is the folder of the module that has simulators, benchmarks and the tests that need
// them. What is outside is what ships, its unit tests, and examples.
const tooling = "test"

// overTheFence returns the files outside the fence that import something inside: with it the
// product's module would require the servers and browsers of tests.
func overTheFence(t *tree) []string {
	var out []string
	t.files(func(s *source) {
		for _, imp := range s.imports {
			if under(imp, tooling) && !under(s.path, tooling) {
				out = append(out, fmt.Sprintf("%s imports %s: a test that needs it stands under %s, at the same path without internal or pkg", s.path, imp, tooling))
			}
		}
	})
	return out
}

// pins returns the modules that a go.mod requires, with their versions.
func pins(mod string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(mod) {
		if m := requirement.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil && m[1] != module {
			out[m[1]] = m[2]
		}
	}
	return out
}

// apart returns the modules that tests link at another version than the product.
func apart(product, tests string) []string {
	ships, tries := pins(product), pins(tests)
	var out []string
	for _, m := range slices.Sorted(maps.Keys(ships)) {
		if v := tries[m]; v != "" && v != ships[m] {
			out = append(out, fmt.Sprintf("%s: the product links %s, its tests %s: they try something that nobody is given", m, ships[m], v))
		}
	}
	return out
}

// notInstallable returns the lines of a go.mod with which go install refuses a version of it.
func notInstallable(mod string) []string {
	var out []string
	for line := range strings.Lines(mod) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); word == "replace" || word == "exclude" {
			out = append(out, "go.mod: "+strings.TrimSpace(line)+": go install of cmd/extproc by version refuses it")
		}
	}
	return out
}

func bothModules(t *testing.T) (product, tests string) {
	t.Helper()
	p, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	q, err := os.ReadFile("../../" + tooling + "/go.mod")
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(q), "module "+module+"/"+tooling+"\n"))
	return string(p), string(q)
}

func TestNothingOutsideTheFenceNeedsWhatIsInside(t *testing.T) { obey(t, overTheFence(house(t))) }

func TestTestsLinkWhatShips(t *testing.T) {
	product, tests := bothModules(t)
	require.Contains(t, pins(tests), "github.com/stretchr/testify")
	obey(t, apart(product, tests))
}

func TestTheCommandCanBeInstalledByItsVersion(t *testing.T) {
	product, _ := bothModules(t)
	obey(t, notInstallable(product))
}

func TestTheFenceIsSeenToFail(t *testing.T) {
	tr := madeUp(t, map[string]string{
		"internal/a/a.go":      "package a",
		"internal/a/a_test.go": "package a\nimport _ \"" + module + "/test/stack\"",
		"test/a/a_test.go":     "package a\nimport (\n_ \"" + module + "/test/stack\"\n_ \"" + module + "/internal/a\"\n)",
	})
	require.Equal(t, []string{
		"internal/a/a_test.go imports test/stack: a test that needs it stands under test, at the same path without internal or pkg",
	}, overTheFence(tr))
	require.Equal(t, []string{"x.y/b: the product links v1.0.0, its tests v1.1.0: they try something that nobody is given"},
		apart("require (\n\tx.y/a v1.0.0\n\tx.y/b v1.0.0 // indirect\n)\n", "require (\n\tx.y/a v1.0.0\n\tx.y/b v1.1.0\n\tx.y/c v1.0.0\n)\n"))
	require.Equal(t, []string{
		"go.mod: replace x.y/a => ../a: go install of cmd/extproc by version refuses it",
		"go.mod: exclude x.y/b v1.0.0: go install of cmd/extproc by version refuses it",
	}, notInstallable("module x.y/z\n\nreplace x.y/a => ../a\nexclude x.y/b v1.0.0\n"))
}
