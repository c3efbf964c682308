package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"testing"

	"github.com/stretchr/testify/require"
)

// lasting returns the variables of packages that a function changes: what one caller does
// then depends on what others did before, and two of anything cannot be had.
func lasting(t *tree) []string {
	var out []string
	for _, p := range t.packages() {
		vars := map[string]bool{}
		for _, s := range t.pkgs[p] {
			for _, name := range s.declares(token.VAR) {
				vars[name] = !s.test
			}
		}
		for _, s := range t.pkgs[p] {
			if s.test {
				continue
			}
			for _, d := range s.ast.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
					out = append(out, t.changes(f, vars)...)
				}
			}
		}
	}
	return out
}

// declares returns the names of a file's constants or variables that belong to the package.
func (s *source) declares(kind token.Token) []string {
	var out []string
	for _, d := range s.ast.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != kind {
			continue
		}
		for _, spec := range g.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				out = append(out, name.Name)
			}
		}
	}
	return out
}

// changes are the places where a function changes one of the variables. A name that the
// function declares anywhere is taken for its own.
func (t *tree) changes(f *ast.FuncDecl, vars map[string]bool) []string {
	own := declared(f)
	var out []string
	change := func(to ast.Expr) {
		if name := rootOf(to); name != "_" && vars[name] && !own[name] {
			out = append(out, fmt.Sprintf("%s: changes %s, a variable of the package: keep it in a value that is passed on", t.at(to), name))
		}
	}
	assigned(f.Body, change)
	return out
}

// declared are the names that a function declares, parameters included.
func declared(f *ast.FuncDecl) map[string]bool {
	own := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		var names []ast.Expr
		switch x := n.(type) {
		case *ast.Field:
			for _, name := range x.Names {
				own[name.Name] = true
			}
		case *ast.ValueSpec:
			for _, name := range x.Names {
				own[name.Name] = true
			}
		case *ast.AssignStmt:
			if x.Tok == token.DEFINE {
				names = x.Lhs
			}
		case *ast.RangeStmt:
			if x.Tok == token.DEFINE {
				names = []ast.Expr{x.Key, x.Value}
			}
		}
		for _, e := range names {
			if name, ok := e.(*ast.Ident); ok {
				own[name.Name] = true
			}
		}
		return true
	})
	return own
}

// rootOf is the variable in which an expression lies: x of x.a[i].b.
func rootOf(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return rootOf(x.X)
	case *ast.IndexExpr:
		return rootOf(x.X)
	case *ast.StarExpr:
		return rootOf(x.X)
	case *ast.ParenExpr:
		return rootOf(x.X)
	}
	return ""
}

func TestNoPackageHasState(t *testing.T) { obey(t, lasting(house(t))) }

func TestStateIsSeen(t *testing.T) {
	tr := madeUp(t, map[string]string{
		"pkg/a/a.go": "package a\nvar n int\nvar m = map[string]int{}\nvar s struct{ x []int }\nconst c = 1\n" +
			"func f() {\nn = 1\nm[\"a\"]++\n(*s).x[0] += 2\nfor n = range 3 {}\n}\n",
		"pkg/a/b.go":      "package a\nfunc g(n int) {\nn = 1\nm := m\nm[\"a\"] = 1\nvar s int\ns++\nos.Args = nil\n_ = n\n}",
		"pkg/a/a_test.go": "package a\nvar only int\nfunc h() { n = 1; only = 2 }",
		"pkg/b/b.go":      "package b\nvar _ = 1\nfunc f() { n = 1; _ = 2 }",
	})
	got := lasting(tr)
	require.Len(t, got, 4)
	for i, at := range []string{"pkg/a/a.go:7: changes n", "pkg/a/a.go:8: changes m", "pkg/a/a.go:9: changes s", "pkg/a/a.go:10: changes n"} {
		require.Contains(t, got[i], at)
	}
}

// assigned calls do with all that is assigned to below a node, declarations aside.
func assigned(in ast.Node, do func(to ast.Expr)) {
	ast.Inspect(in, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.AssignStmt:
			for _, to := range x.Lhs {
				if x.Tok != token.DEFINE {
					do(to)
				}
			}
		case *ast.IncDecStmt:
			do(x.X)
		case *ast.RangeStmt:
			if x.Tok == token.ASSIGN {
				do(x.Key)
			}
		}
		return true
	})
}
