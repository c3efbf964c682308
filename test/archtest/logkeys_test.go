package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// logKeys is the package that has every key of a log line.
const logKeys = "internal/telemetry/logkey"

// ownLogs log under keys of their own, each with the reason.
var ownLogs = map[string]string{
	"test/enginesim": "a simulated engine shares nothing with the plugin",
}

// attributes are slog's functions whose first argument is a key.
var attributes = []string{"Any", "Bool", "Duration", "Float64", "Group", "GroupAttrs", "Int", "Int64", "String", "Time", "Uint64"}

// logs are the methods of a logger, by how many arguments come before the first attribute.
var logs = map[string]int{
	"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "With": 0,
	"DebugContext": 2, "InfoContext": 2, "WarnContext": 2, "ErrorContext": 2, "Log": 3, "LogAttrs": 3,
}

// keyReader collects the keys of a file that are not from the list.
type keyReader struct {
	list, std string          // what the file calls the list of keys, and slog
	gathered  map[string]bool // variables whose elements are given to a logger
	strange   []ast.Expr
}

// strangeKeys returns where a file logs under a key that is not from the list.
func strangeKeys(t *tree, s *source) []string {
	k := keyReader{list: localName(s, module+"/"+logKeys), std: localName(s, "log/slog"), gathered: map[string]bool{}}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			k.call(call)
		}
		return true
	})
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			k.assigned(a)
		}
		return true
	})
	var out []string
	for _, e := range k.strange {
		out = append(out, t.at(e)+": a log key of its own: take it from "+logKeys+", which has all of them with their meaning")
	}
	return out
}

// call reads the keys of a call of slog or of a logger.
func (k *keyReader) call(call *ast.CallExpr) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return
	}
	if fromPackage(sel, k.std) && slices.Contains(attributes, sel.Sel.Name) && !fromPackage(call.Args[0], k.list) {
		k.strange = append(k.strange, call.Args[0])
	}
	first, is := logs[sel.Sel.Name]
	if !is || !fromPackage(sel, k.std) && !isLogger(sel.X) || len(call.Args) <= first {
		return
	}
	k.pairs(call.Args[first:])
	if call.Ellipsis.IsValid() {
		k.gather(call.Args[len(call.Args)-1])
	}
}

// pairs reads keys with their values. Attributes are calls, which are read as such.
func (k *keyReader) pairs(args []ast.Expr) {
	for i := 0; i < len(args); i++ {
		switch {
		case fromPackage(args[i], k.list):
			i++ // its value
		case isText(args[i]):
			k.strange = append(k.strange, args[i])
			i++
		default:
			k.pairs(listed(args[i]))
		}
	}
}

// gather notes the variable of a list that is given to a logger.
func (k *keyReader) gather(list ast.Expr) {
	if l := listed(list); len(l) > 0 {
		list = l[0]
	}
	if x, ok := list.(*ast.Ident); ok {
		k.gathered[x.Name] = true
	}
}

// assigned reads what a gathered variable is set to.
func (k *keyReader) assigned(a *ast.AssignStmt) {
	for i, to := range a.Lhs {
		if x, ok := to.(*ast.Ident); ok && k.gathered[x.Name] {
			k.pairs(listed(a.Rhs[i]))
		}
	}
}

// listed are the elements of a list that is written in place, or appended.
func listed(e ast.Expr) []ast.Expr {
	switch x := e.(type) {
	case *ast.CompositeLit:
		return x.Elts
	case *ast.CallExpr:
		if f, ok := x.Fun.(*ast.Ident); ok && f.Name == "append" {
			return x.Args
		}
	}
	return nil
}

// isLogger reports whether an expression is named as a logger is.
func isLogger(e ast.Expr) bool {
	name := ""
	switch x := e.(type) {
	case *ast.Ident:
		name = x.Name
	case *ast.SelectorExpr:
		name = x.Sel.Name
	}
	return strings.EqualFold(name, "log") || strings.EqualFold(name, "logger")
}

func isText(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING
}

// keysOfLogs returns what breaks the law of log keys: a key that is not from the list, and a
// key of the list that nobody logs.
func keysOfLogs(t *tree, excused map[string]string) []string {
	declared, used := map[string]bool{}, map[string]bool{}
	var out []string
	t.files(func(s *source) {
		switch {
		case s.test || underAny(s.path, slices.Collect(maps.Keys(excused))):
		case path.Dir(s.path) == logKeys:
			for _, name := range s.declares(token.CONST) {
				declared[name] = true
			}
		default:
			out = append(out, strangeKeys(t, s)...)
			for _, name := range namesOf(s, module+"/"+logKeys) {
				used[name] = true
			}
		}
	})
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		if !used[name] {
			out = append(out, fmt.Sprintf("%s.%s: nobody logs it: strike it", logKeys, name))
		}
	}
	return out
}

// namesOf are the names of a package that a file uses.
func namesOf(s *source, pkg string) []string {
	var out []string
	local := localName(s, pkg)
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && fromPackage(sel, local) {
			out = append(out, sel.Sel.Name)
		}
		return true
	})
	return out
}

func TestEveryLogKeyIsFromTheList(t *testing.T) { obey(t, keysOfLogs(house(t), ownLogs)) }

func TestStrangeLogKeysAreSeen(t *testing.T) {
	const imports = "import (\n\"log/slog\"\n\"" + module + "/" + logKeys + "\"\n)\n"
	files := map[string]string{
		logKeys + "/a.go": "package logkey\nconst (\nErr = \"err\"\nModel = \"model\"\n)",
		"pkg/good/a.go": "package good\n" + imports + "func f() {\n" +
			"x.log.Warn(\"a\", logkey.Err, \"b\", logkey.Model, \"c\")\n" +
			"log.LogAttrs(c, l, \"a\", slog.Any(logkey.Err, e))\n" +
			"t.Error(\"a\", \"b\", 1)\n" +
			"log.Info(\"a\", append(at, logkey.Err, \"b\")...)\n" +
			"words := []string{\"a\"}\n}",
		"pkg/good/a_test.go":  "package good\nfunc f() { log.Warn(\"a\", \"kind\", 1) }",
		"test/enginesim/a.go": "package enginesim\nfunc f() { log.Warn(\"a\", \"kind\", 1) }",
	}
	require.Empty(t, keysOfLogs(madeUp(t, files), ownLogs))
	files["pkg/bad/a.go"] = "package bad\nimport s \"log/slog\"\nfunc f() {\n" +
		"x.Logger.Error(\"a\",\n\"err\", e,\n\"model\", \"b\")\n" +
		"log.Log(c, l, \"a\", at, s.Int(\"n\", 1))\n" +
		"tell(s.String(name, \"a\"))\n" +
		"s.InfoContext(c, \"a\", append(at, \"by\", 1)...)\n" +
		"l := log.With([]any{\"state\", 1}...)\n" +
		"what, all := 1, []any{\"a\", 1}\n" +
		"all = append(all, \"b\", 1)\n" +
		"log.Warn(\"a\", all...)\n}"
	got := keysOfLogs(madeUp(t, files), ownLogs)
	require.Len(t, got, 8)
	for _, line := range []string{"5", "6", "7", "8", "9", "10", "11", "12"} {
		require.Contains(t, got, "pkg/bad/a.go:"+line+": a log key of its own: take it from "+logKeys+", which has all of them with their meaning")
	}
	delete(files, "pkg/bad/a.go")
	files[logKeys+"/a.go"] += "\nconst Spare = \"spare\""
	require.Equal(t, []string{logKeys + ".Spare: nobody logs it: strike it"}, keysOfLogs(madeUp(t, files), ownLogs))
}
