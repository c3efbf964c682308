package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// module is the path in go.mod; TestTheModuleIsTheOneWeThink holds it.
const module = "github.com/seed-60ae5743/baton"

// source is one parsed file.
type source struct {
	path    string // from the root of the module, with slashes
	test    bool
	ast     *ast.File
	lines   int
	imports []string // ours without the module's path
}

// tree is the module: its packages by folder ("pkg/worker").
type tree struct {
	fset *token.FileSet
	pkgs map[string][]*source
}

func load(fsys fs.FS) (*tree, error) {
	t := &tree{fset: token.NewFileSet(), pkgs: map[string][]*source{}}
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (name == "testdata" || name == "vendor" || p != "." && (name[0] == '.' || name[0] == '_')) {
			return fs.SkipDir
		}
		if d.IsDir() || path.Ext(name) != ".go" {
			return nil
		}
		return t.add(fsys, p)
	})
	return t, err
}

func (t *tree) add(fsys fs.FS, p string) error {
	data, err := fs.ReadFile(fsys, p)
	if err != nil {
		return err
	}
	f, err := parser.ParseFile(t.fset, p, data, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	s := &source{path: p, test: strings.HasSuffix(p, "_test.go"), ast: f, lines: strings.Count(string(data), "\n")}
	for _, i := range f.Imports {
		imp, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return fmt.Errorf("%s: import %s: %w", p, i.Path.Value, err)
		}
		s.imports = append(s.imports, strings.TrimPrefix(imp, module+"/"))
	}
	t.pkgs[path.Dir(p)] = append(t.pkgs[path.Dir(p)], s)
	return nil
}

// packages returns the folders, sorted.
func (t *tree) packages() []string { return slices.Sorted(maps.Keys(t.pkgs)) }

// files calls fn for each file, in order.
func (t *tree) files(fn func(s *source)) {
	for _, p := range t.packages() {
		for _, s := range t.pkgs[p] {
			fn(s)
		}
	}
}

// at returns "path:line" of a node.
func (t *tree) at(n ast.Node) string {
	p := t.fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// under reports whether p is dir or inside it.
func under(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func underAny(p string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return under(p, d) })
}

// refers returns the places where a file refers to one of the names of a
// package of the standard library, whatever it is imported as.
func (t *tree) refers(s *source, pkg string, names ...string) []string {
	local := localName(s, pkg)
	var out []string
	ast.Inspect(s.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if ok && fromPackage(sel, local) && slices.Contains(names, sel.Sel.Name) {
			out = append(out, t.at(sel))
		}
		return true
	})
	return out
}

// localName is what a file calls a package that it imports; "" if it does not.
func localName(s *source, pkg string) string {
	for _, i := range s.ast.Imports {
		if i.Path.Value != strconv.Quote(pkg) {
			continue
		}
		if i.Name != nil {
			return i.Name.Name
		}
		return path.Base(pkg)
	}
	return ""
}

// fromPackage reports whether an expression is a name of the package that a file calls local.
func fromPackage(e ast.Expr, local string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && local != "" && x.Name == local
}

// parsed is the real tree, which is read once.
var parsed = sync.OnceValues(func() (*tree, error) { return load(os.DirFS("../..")) })

// house is the real tree. It must not be changed.
func house(t *testing.T) *tree {
	t.Helper()
	tr, err := parsed()
	require.NoError(t, err)
	require.Contains(t, tr.pkgs, "pkg/worker", "the tree was not found")
	return tr
}

// madeUp is a tree out of sources by path.
func madeUp(t *testing.T, files map[string]string) *tree {
	t.Helper()
	m := fstest.MapFS{}
	for p, text := range files {
		m[p] = &fstest.MapFile{Data: []byte(text)}
	}
	tr, err := load(m)
	require.NoError(t, err)
	return tr
}

// obey fails with every breach of a law.
func obey(t *testing.T, breaches []string) {
	t.Helper()
	for _, b := range breaches {
		t.Error(b)
	}
}

func TestTheModuleIsTheOneWeThink(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(mod), "module "+module+"\n"))
}

// TestTheReadmeHasTheGoVersionOfTheModule: who installs what the README says can build.
func TestTheReadmeHasTheGoVersionOfTheModule(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(mod), "\ngo ")
	require.True(t, found)
	version, _, _ := strings.Cut(rest, "\n")
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "with Go "+version+",")
}
