package archtest

import (
	"go/ast"
	"go/doc"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// exampleFile is where a public package shows how it is used: by itself, so that the file
// compiles in any module.
const exampleFile = "example_test.go"

// unshown returns the public packages that no example shows which is run, and those whose
// example could not stand in another module.
func unshown(t *tree) []string {
	var out []string
	for _, p := range t.packages() {
		if !under(p, "pkg") {
			continue
		}
		shown := false
		for _, s := range t.pkgs[p] {
			if s.path == p+"/"+exampleFile && strings.HasSuffix(s.ast.Name.Name, "_test") {
				shown = runs(s.ast)
			}
		}
		if !shown {
			out = append(out, p+": no example with an output in "+exampleFile+", in a package of its own: whoever imports it begins there")
		}
	}
	return out
}

// runs reports whether an example of a file is run, and not only compiled.
func runs(f *ast.File) bool {
	for _, e := range doc.Examples(f) {
		if e.Output != "" || e.EmptyOutput {
			return true
		}
	}
	return false
}

func TestEveryPublicPackageHasAnExample(t *testing.T) { obey(t, unshown(house(t))) }

func TestPackagesWithoutAnExampleAreSeen(t *testing.T) {
	const runs = "func Example() {\n\tprintln()\n\t// Output:\n}\n"
	var got []string
	for _, o := range unshown(madeUp(t, map[string]string{
		"pkg/a/a.go": "package a", "pkg/a/example_test.go": "package a_test\n" + runs,
		"pkg/b/b.go": "package b", "pkg/b/b_test.go": "package b_test\n" + runs,
		"pkg/c/c.go": "package c", "pkg/c/example_test.go": "package c\n" + runs,
		"pkg/d/d.go": "package d", "pkg/d/example_test.go": "package d_test\nfunc Example() { println() }\n",
		"internal/e/e.go": "package e",
	})) {
		p, _, _ := strings.Cut(o, ":")
		got = append(got, p)
	}
	require.Equal(t, []string{"pkg/b", "pkg/c", "pkg/d"}, got)
}

// outside makes a module of its own that has this one's requirements and its sums, so that it
// needs no network, and returns a function that runs go in it.
func outside(t *testing.T, files map[string][]byte) func(args ...string) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	ours, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	mod := regexp.MustCompile(`(?m)^module .*$`).ReplaceAllString(string(ours), "module example.com/outside")
	files["go.mod"] = []byte(mod + "\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + root + "\n")
	files["go.sum"], err = os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	dir := t.TempDir()
	for file, content := range files {
		file = filepath.Join(dir, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, content, 0o600))
	}
	return func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = dir
		cmd.Env = append(cmd.Environ(), "GOPROXY=off", "GOWORK=off", "GOFLAGS=-mod=mod")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
}

// TestPublicPackagesCanBeUsedFromOutside copies the examples of all public packages, and the
// program of examples/library, into another module, where nothing internal can be imported. The
// examples are compiled there (they run beside their packages); the program runs, and says what
// its page says that it does.
func TestPublicPackagesCanBeUsedFromOutside(t *testing.T) {
	fsys := os.DirFS("../..")
	files := map[string][]byte{}
	for _, p := range house(t).packages() {
		if under(p, "pkg") {
			text, err := fs.ReadFile(fsys, p+"/"+exampleFile)
			require.NoError(t, err)
			files[p+"/"+exampleFile] = text
		}
	}
	text, err := fs.ReadFile(fsys, "examples/library/main.go")
	require.NoError(t, err)
	files["library/main.go"] = text
	page, err := fs.ReadFile(fsys, "examples/library/README.md")
	require.NoError(t, err)
	_, says, found := strings.Cut(string(page), "```text\n")
	require.True(t, found)
	says, _, found = strings.Cut(says, "```")
	require.True(t, found)

	goIn := outside(t, files)
	require.Equal(t, says, goIn("run", "./library"), "examples/library/README.md")
	goIn("vet", "./...")
}
