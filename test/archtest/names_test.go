package archtest

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// audit looks through what packages export for internal types that another module cannot name.
type audit struct {
	named map[*types.TypeName]bool // internal, and exported by one of the packages under a name of its own
	seen  map[types.Type]bool      // types whose parts have been looked through
	out   []string
}

// nameless returns where the exported parts of packages have an internal type without a public
// name: whoever imports them can neither declare a variable of it nor make a value.
func nameless(pkgs []*types.Package) []string {
	a := &audit{named: map[*types.TypeName]bool{}, seen: map[types.Type]bool{}}
	var objects []types.Object
	for _, p := range pkgs {
		for _, name := range p.Scope().Names() {
			o := p.Scope().Lookup(name)
			if !o.Exported() {
				continue
			}
			objects = append(objects, o)
			if n, ok := types.Unalias(o.Type()).(*types.Named); ok {
				if alias, ok := o.(*types.TypeName); ok && alias.IsAlias() {
					a.named[n.Obj()] = true
				}
			}
		}
	}
	for _, o := range objects {
		at := short(o.Pkg()) + "." + o.Name()
		n, named := types.Unalias(o.Type()).(*types.Named)
		if _, ok := o.(*types.TypeName); ok && named {
			a.declared(n, at)
			continue
		}
		a.mentioned(o.Type(), at)
	}
	slices.Sort(a.out)
	return slices.Compact(a.out)
}

func short(p *types.Package) string { return strings.TrimPrefix(p.Path(), module+"/") }

// declared looks through a type's exported methods and fields, also those of what it embeds.
func (a *audit) declared(n *types.Named, at string) {
	if a.seen[n] {
		return
	}
	a.seen[n] = true
	for m := range types.NewMethodSet(types.NewPointer(n)).Methods() {
		if m.Obj().Exported() {
			a.mentioned(m.Obj().Type(), at+"."+m.Obj().Name())
		}
	}
	for p := range n.TypeParams().TypeParams() {
		a.mentioned(p.Constraint(), at)
	}
	a.mentioned(n.Underlying(), at)
}

// mentioned looks through the types that are written in an exported place.
func (a *audit) mentioned(t types.Type, at string) {
	switch t := t.(type) {
	case *types.Alias:
		a.mentioned(types.Unalias(t), at)
	case *types.Named:
		for arg := range t.TypeArgs().Types() {
			a.mentioned(arg, at)
		}
		a.judge(t, at)
	case *types.Signature:
		for p := range t.TypeParams().TypeParams() {
			a.mentioned(p.Constraint(), at)
		}
		a.mentioned(t.Params(), at)
		a.mentioned(t.Results(), at)
	case *types.Tuple:
		for v := range t.Variables() {
			a.mentioned(v.Type(), at)
		}
	case *types.Map:
		a.mentioned(t.Key(), at)
		a.mentioned(t.Elem(), at)
	case interface{ Elem() types.Type }: // pointer, slice, array, channel
		a.mentioned(t.Elem(), at)
	case *types.Struct:
		for f := range t.Fields() {
			a.field(f, at)
		}
	case *types.Interface:
		for m := range t.Methods() {
			if m.Exported() {
				a.mentioned(m.Type(), at+"."+m.Name())
			}
		}
	}
}

// field looks through a field that is exported, and through one that is embedded: that gives
// its own parts to the struct.
func (a *audit) field(f *types.Var, at string) {
	switch {
	case f.Exported():
		a.mentioned(f.Type(), at+"."+f.Name())
	case f.Embedded():
		t := f.Type()
		if p, ok := t.(*types.Pointer); ok {
			t = p.Elem()
		}
		a.mentioned(t.Underlying(), at)
	}
}

// judge notes a type that has no public name. One that is not exported, but returned, is
// looked through like a declaration: its methods can be called.
func (a *audit) judge(n *types.Named, at string) {
	o := n.Obj()
	switch {
	case o.Pkg() == nil || !strings.HasPrefix(o.Pkg().Path(), module+"/"):
	case under(short(o.Pkg()), "internal"):
		if !a.named[n.Origin().Obj()] {
			a.out = append(a.out, fmt.Sprintf("%s has %s.%s, which no other module can name: take a public type, or give this one a name in pkg", at, short(o.Pkg()), o.Name()))
		}
	case !o.Exported():
		a.declared(n, at)
	}
}

// exported returns the packages of pkg as the compiler has written down what they export.
func exported(t *testing.T) []*types.Package {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-tags", "invariants", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./pkg/...")
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[name] = file
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(p string) (io.ReadCloser, error) { return os.Open(files[p]) })
	var pkgs []*types.Package
	for p := range files {
		if strings.HasPrefix(p, module+"/pkg/") {
			pkg, err := imports.Import(p)
			require.NoError(t, err)
			pkgs = append(pkgs, pkg)
		}
	}
	require.NotEmpty(t, pkgs)
	return pkgs
}

func TestWhatPkgExportsCanBeNamedElsewhere(t *testing.T) { obey(t, nameless(exported(t))) }

// madeTypes are the packages of a made-up tree; each imports those before it.
type madeTypes map[string]*types.Package

func (m madeTypes) Import(p string) (*types.Package, error) { return m[p], nil }

func TestNamelessTypesAreSeen(t *testing.T) {
	made := madeTypes{}
	check := func(p, text string) *types.Package {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, p, text, 0)
		require.NoError(t, err)
		pkg, err := (&types.Config{Importer: made}).Check(module+"/"+p, fset, []*ast.File{f}, nil)
		require.NoError(t, err)
		made[module+"/"+p] = pkg
		return pkg
	}
	check("internal/a", "package a\ntype T struct { V V }\ntype U int\ntype V int\ntype W[X any] struct{}\ntype E struct{}\nfunc (E) M(U) {}\n")
	const imports = "\nimport \"" + module + "/internal/a\"\n"
	names := check("pkg/n", "package n"+imports+"type T = a.T\n")
	uses := check("pkg/u", "package u"+imports+`
import "`+module+`/pkg/n"
func F(*a.T, n.T) {}
func G() map[string][]a.U { return nil }
func H() *hidden { return nil }
func I[X interface{ M(a.U) }](X) {}
func private(a.U) {}
type S struct {
	A chan a.U
	b a.U
	*inner
}
type inner struct { C a.U }
type hidden struct{}
func (hidden) M(a.U) {}
type J interface { M() a.W[int] }
type K = func(a.U)
type L struct { a.E }
var P a.U
var q a.U
type N int
func (N) m(a.U) {}
`)
	var got []string
	for _, b := range nameless([]*types.Package{names, uses}) {
		where, _, _ := strings.Cut(b, ", which no other module can name")
		got = append(got, where)
	}
	require.Equal(t, []string{
		"pkg/n.T.V has internal/a.V", "pkg/u.G has internal/a.U", "pkg/u.H.M has internal/a.U", "pkg/u.I.M has internal/a.U",
		"pkg/u.J.M has internal/a.W", "pkg/u.K has internal/a.U", "pkg/u.L.E has internal/a.E", "pkg/u.L.M has internal/a.U",
		"pkg/u.P has internal/a.U", "pkg/u.S.A has internal/a.U", "pkg/u.S.C has internal/a.U",
	}, got)
}
