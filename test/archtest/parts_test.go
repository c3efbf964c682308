package archtest

import (
	"go/ast"
	"path"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// parts are the fields of large types whose own fields only their methods write, by package.
var parts = map[string][]string{
	"internal/extproc": {"asked", "decided", "far", "answered"}, // of mainStream
}

// meddles returns where a field of a part is assigned from outside: by a way that leads through the
// part, as s.asked.began does, and q.began, in a method of the part, does not. What a call changes is
// not seen.
func meddles(t *tree, parts map[string][]string) []string {
	var out []string
	t.files(func(s *source) {
		of := parts[path.Dir(s.path)]
		if s.test || of == nil {
			return
		}
		change := func(to ast.Expr) {
			sel, ok := to.(*ast.SelectorExpr)
			if ok && throughPart(sel.X, of) {
				out = append(out, t.at(to)+": writes a field of a part from outside: give the part a method")
			}
		}
		assigned(s.ast, change)
	})
	return out
}

// throughPart reports whether an expression is a part of something, or lies in one.
func throughPart(e ast.Expr, parts []string) bool {
	for {
		switch x := e.(type) {
		case *ast.SelectorExpr:
			if slices.Contains(parts, x.Sel.Name) {
				return true
			}
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		default:
			return false
		}
	}
}

func TestOnlyAPartWritesItsFields(t *testing.T) {
	tr := house(t)
	obey(t, meddles(tr, parts))
	for pkg := range parts {
		require.Contains(t, tr.pkgs, pkg)
	}
}

func TestMeddlingIsSeen(t *testing.T) {
	tr := madeUp(t, map[string]string{
		"pkg/a/a.go": `package a
func f() {
	s.asked.n = 1
	x.s.asked.in[2].n++
	s.asked = y
	asked.n = 1
	q.n = 1
	n := s.asked.n
	s.asked.set(1)
	a, s.asked.b = 1, 2
}`,
		"pkg/a/a_test.go": "package a\nfunc g() { s.asked.n = 1 }",
		"pkg/b/b.go":      "package b\nfunc f() { s.asked.n = 1 }",
	})
	const why = ": writes a field of a part from outside: give the part a method"
	require.Equal(t, []string{"pkg/a/a.go:3" + why, "pkg/a/a.go:4" + why, "pkg/a/a.go:10" + why}, meddles(tr, map[string][]string{"pkg/a": {"asked"}}))
}
