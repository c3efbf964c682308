package archtest

import (
	"go/ast"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unguarded are packages whose mutexes need not say what they guard.
var unguarded = map[string]excuse{}

// unguarding returns the mutexes of which no comment says what they guard: neither their own, nor
// that of a field beside them, nor that of their struct.
func unguarding(t *tree, excused map[string]excuse) []string {
	var out []string
	t.files(func(s *source) {
		if _, is := excused[path.Dir(s.path)]; s.test || is {
			return
		}
		local := localName(s, "sync")
		ast.Inspect(s.ast, func(n ast.Node) bool {
			st, ok := n.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range st.Fields.List {
				if isMutex(f.Type, local) && f.Doc.Text()+f.Comment.Text() == "" && !saidOfGuards(st) {
					out = append(out, t.at(f)+": a mutex, and no comment says what it guards: say it over the mutex, or of each field (guarded by mu)")
				}
			}
			return true
		})
	})
	return out
}

// saidOfGuards reports whether a field of a struct says that it is guarded.
func saidOfGuards(st *ast.StructType) bool {
	for _, f := range st.Fields.List {
		if strings.Contains(strings.ToLower(f.Doc.Text()+f.Comment.Text()), "guard") {
			return true
		}
	}
	return false
}

func isMutex(e ast.Expr, local string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	return ok && fromPackage(sel, local) && (sel.Sel.Name == "Mutex" || sel.Sel.Name == "RWMutex")
}

// loggedUnderLock returns where a function logs between its own Lock and Unlock: a slow reader
// of the log then stops all who wait for the lock.
func loggedUnderLock(t *tree) []string {
	var out []string
	t.files(func(s *source) {
		if s.test {
			return
		}
		std := localName(s, "log/slog")
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if b, ok := n.(*ast.BlockStmt); ok {
				out = append(out, t.logsUnderLock(b.List, std)...)
			}
			return true
		})
	})
	return out
}

// logsUnderLock reads the statements of one block. A lock that another function or an inner block
// takes or gives back is not seen here.
func (t *tree) logsUnderLock(list []ast.Stmt, std string) []string {
	var out []string
	held := map[string]bool{}
	for _, stmt := range list {
		if x, ok := stmt.(*ast.ExprStmt); ok {
			switch mutex, name := lockCall(x.X); name {
			case "Lock", "RLock":
				held[mutex] = true
			case "Unlock", "RUnlock":
				delete(held, mutex)
			}
		}
		if len(held) == 0 {
			continue
		}
		ast.Inspect(stmt, func(n ast.Node) bool {
			if _, ok := n.(*ast.FuncLit); ok {
				return false
			}
			if call, ok := n.(*ast.CallExpr); ok && isLog(call, std) {
				out = append(out, t.at(call)+": logs while it holds a lock: log after Unlock")
			}
			return true
		})
	}
	return out
}

// lockCall returns what a call without arguments is of, and its name; "" if it is another call.
func lockCall(e ast.Expr) (mutex, name string) {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) > 0 {
		return "", ""
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	return written(sel.X), sel.Sel.Name
}

// written is an expression of names and dots as text.
func written(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return written(x.X) + "." + x.Sel.Name
	}
	return "?"
}

func isLog(call *ast.CallExpr, std string) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	first, is := logs[sel.Sel.Name]
	return is && first > 0 && (isLogger(sel.X) || fromPackage(sel, std))
}

func TestEveryMutexSaysWhatItGuards(t *testing.T) { obey(t, unguarding(house(t), unguarded)) }
func TestNothingIsLoggedUnderALock(t *testing.T)  { obey(t, loggedUnderLock(house(t))) }

func TestLawsOfLocksAreSeenToFail(t *testing.T) {
	files := map[string]string{
		"pkg/a/a.go": "package a\nimport \"sync\"\n" +
			"type A struct {\nmu sync.Mutex\nn int\n}\n" + // 4
			"type B struct {\nmu sync.RWMutex // guards n\nn int\n}\n" +
			"type C struct {\n// mu guards n.\nmu sync.Mutex\nn int\n}\n" +
			"type D struct {\nmu sync.Mutex\nn int // guarded by mu\n}\n" +
			"type E struct {\nsync.Mutex\nn int // how many\n}", // 21
		"pkg/a/a_test.go": "package a\nimport \"sync\"\ntype F struct { mu sync.Mutex }",
		"pkg/b/b.go":      "package b\nimport \"sync\"\ntype G struct { mu sync.Mutex }",
	}
	const why = ": a mutex, and no comment says what it guards: say it over the mutex, or of each field (guarded by mu)"
	require.Equal(t, []string{"pkg/a/a.go:4" + why, "pkg/a/a.go:21" + why},
		unguarding(madeUp(t, files), map[string]excuse{"pkg/b": {"2026-12-31", "for the test"}}))

	tr := madeUp(t, map[string]string{"pkg/a/a.go": `package a
import s "log/slog"
func f() {
	x.log.Warn("a")
	x.mu.Lock()
	x.log.Warn("a")
	if bad {
		s.Info("a")
	}
	go func() { log.Error("a") }()
	t.Error("a")
	x.mu.Unlock()
	x.log.Warn("a")
	if bad {
		x.mu.RLock()
		defer x.mu.RUnlock()
		x.logger.Debug("a")
		x.log.With("a")
	}
	x.log.Warn("a")
}`, "pkg/a/a_test.go": "package a\nfunc g() {\nmu.Lock()\nlog.Warn(1)\n}"})
	const late = ": logs while it holds a lock: log after Unlock"
	require.Equal(t, []string{"pkg/a/a.go:6" + late, "pkg/a/a.go:8" + late, "pkg/a/a.go:17" + late}, loggedUnderLock(tr))
}
