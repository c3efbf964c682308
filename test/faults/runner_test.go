package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEachFaultGetsItsVerdict is over a module of one line, by the real go command.
func TestEachFaultGetsItsVerdict(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module m\n\ngo 1.21\n",
		"a.go":      "package a\n\nimport _ \"embed\"\n\n//go:embed a.txt\nvar Text string\n\nfunc Less(a, b int) bool {\n\treturn a < b\n}\n",
		"a.txt":     "text\n",
		"a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestLess(t *testing.T) {\n\tif !Less(1, 2) || Text != \"text\\n\" {\n\t\tt.Fatal(\"it is wrong\")\n\t}\n}\n\nfunc TestRed(t *testing.T) { t.Fatal(\"always\") }\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	less := func(name, line, test string) fault {
		return fault{name: name, file: "a.go", old: "return a < b", new: line, pkg: "./", tests: []string{test}, tags: "x"}
	}
	faults := []fault{
		less("turned", "return a > b", "TestLess"),
		{name: "embedded", file: "a.txt", old: "text", new: "another", pkg: "./", tests: []string{"TestLess"}, tags: "x"},
		less("small", "return a <= b", "TestLess"),
		less("unreadable", "return a", "TestLess"),
		less("nobodys", "return a > b", "TestGone"),
		less("red anyway", "return a > b", "TestRed"),
		{name: "moved", file: "a.go", old: "return a <= b", new: "return a > b", pkg: "./", tests: []string{"TestLess"}, tags: "x"},
	}
	var out bytes.Buffer
	r := &runner{tool: &gotool{root: dir}, o: &options{control: true}, w: &out}
	require.NoError(t, r.all(t.Context(), faults))
	require.False(t, r.total(len(faults)))
	for _, want := range []string{
		"control     ./: 3 tests, 2 not well",
		"caught      turned by TestLess (",
		"caught      embedded by TestLess (",
		"NOT CAUGHT  small: TestLess passes (",
		"error       unreadable: it does not compile: ",
		"error       nobodys: TestGone: it has not run without the fault (",
		"error       red anyway: TestRed: it does not pass without the fault (",
		"error       moved: a.go: no line is \"return a <= b\" (",
		"7 faults: 2 caught, 1 not caught, 4 errors, 0 not run\n",
	} {
		require.Contains(t, out.String(), want)
	}
	after, err := os.ReadFile(filepath.Join(dir, "a.go"))
	require.NoError(t, err)
	require.Contains(t, string(after), "return a < b", "the tree is as it was")
}

func TestOptionsAndListsThatAreWrongEndWithTheirOwnCode(t *testing.T) {
	for name, args := range map[string][]string{
		"a pattern that is none":    {"-run", "("},
		"a word":                    {"all"},
		"an option that is not one": {"-all"},
		"nobody's name":             {"-run", "^no such fault$"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, said bytes.Buffer
			require.Equal(t, exitUsage, run(t.Context(), args, &out, &said))
			require.NotEmpty(t, said.String())
			require.Empty(t, out.String())
		})
	}
	var out, said bytes.Buffer
	require.Equal(t, exitCaught, run(t.Context(), []string{"-list", "-run", "^overlap-is-not-weighed$"}, &out, &said))
	require.Equal(t, 1, strings.Count(out.String(), "\n"), out.String())
}
