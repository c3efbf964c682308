package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// reserved is a function that few may call.
type reserved struct {
	pkg, name string // pkg "": a method of this name, whatever it is of
	in        []string
	why       string
}

// reserves are the functions that make a choice.
var reserves = []reserved{
	{
		pkg: "pkg/picker", name: "Pick", in: []string{"internal/load", "test/bench", "examples/library"},
		why: "who picks books in the same step, or two requests take the same room",
	},
	{
		name: "PickAndReserve", in: []string{"internal/route", "internal/whatif", "test/bench"},
		why: "who serves a request is decided in one room; whoever runs a leg does not choose",
	},
}

// calls are the places where a function that is reserved is called by others. Tests may.
func calls(t *tree, reserves []reserved) []string {
	var out []string
	t.files(func(s *source) {
		for _, r := range reserves {
			if s.test || underAny(s.path, r.in) {
				continue
			}
			local := localName(s, module+"/"+r.pkg)
			ast.Inspect(s.ast, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if ok && sel.Sel.Name == r.name && (r.pkg == "" || fromPackage(sel, local)) {
					out = append(out, fmt.Sprintf("%s: calls %s, which only %s may: %s", t.at(sel), r.name, strings.Join(r.in, ", "), r.why))
				}
				return true
			})
		}
	})
	return out
}

// wordless are the packages that read no error's text, each with the reason.
var wordless = map[string]string{
	"internal/route": "what a client is told is said where failures are; a refusal has a reason and its facts",
}

// readers are the places where such a package asks an error for its text.
func readers(t *tree, wordless map[string]string) []string {
	var out []string
	t.files(func(s *source) {
		why, held := wordless[path.Dir(s.path)]
		if s.test || !held {
			return
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) > 0 {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Error" {
				out = append(out, t.at(sel)+": reads an error's text: "+why)
			}
			return true
		})
	})
	return out
}

const (
	sources = "pkg/discovery"        // each subpackage is a source of workers, or wraps one,
	form    = "pkg/discovery/record" // but for this one
)

// entwined are the sources of workers that import one another, if only through others.
func entwined(t *tree, sources, form string) []string {
	var out []string
	for _, pkg := range t.packages() {
		if !strings.HasPrefix(pkg, sources+"/") {
			continue
		}
		for imp, way := range t.reached(pkg) {
			if strings.HasPrefix(imp, sources+"/") && !under(imp, pkg) && !under(pkg, imp) && !under(imp, form) {
				out = append(out, fmt.Sprintf("%s imports %s (%s): a source is taken away with its folder; what sources have in common is in %s or %s", pkg, imp, strings.Join(way, " → "), sources, form))
			}
		}
	}
	slices.Sort(out)
	return out
}

const commands = "cmd/extproc"

// strayFiles are the files of the command that belong to none of its subcommands, and the
// subcommands that have no file. version and help are one line each.
func strayFiles(t *tree, dir string) []string {
	var names, files, out []string
	for _, s := range t.pkgs[dir] {
		if !s.test {
			files = append(files, strings.TrimSuffix(path.Base(s.path), ".go"))
			names = append(names, subcommands(s)...)
		}
	}
	for _, f := range files {
		if f != "main" && f != "doc" && !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(f, n) }) {
			out = append(out, fmt.Sprintf("%s/%s.go: of no subcommand: what it does besides is of another room", dir, f))
		}
	}
	for _, n := range names {
		if !slices.Contains(files, n) && n != "version" && n != "help" {
			out = append(out, fmt.Sprintf("%s: the subcommand %s has no file of its own", dir, n))
		}
	}
	return out
}

// subcommands are the words in the cases of a file's switch over args[0].
func subcommands(s *source) []string {
	var out []string
	ast.Inspect(s.ast, func(n ast.Node) bool {
		sw, ok := n.(*ast.SwitchStmt)
		if !ok {
			return true
		}
		if _, ok := sw.Tag.(*ast.IndexExpr); !ok {
			return true
		}
		for _, c := range sw.Body.List {
			for _, e := range c.(*ast.CaseClause).List {
				if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING && lit.Value[1] != '-' {
					out = append(out, strings.Trim(lit.Value, `"`))
				}
			}
		}
		return true
	})
	return out
}

// flagged are the places where a package reads flags itself. What --help ends with is no flag.
func flagged(t *tree, dir string) []string {
	var out []string
	for _, s := range t.pkgs[dir] {
		for _, name := range namesOf(s, "flag") {
			if !s.test && name != "ErrHelp" {
				out = append(out, fmt.Sprintf("%s: reads a flag (flag.%s): internal/config has the flags", s.path, name))
			}
		}
	}
	return out
}

// answers returns what is wrong with the result of a function: it has to be these types.
func answers(t *tree, dir, name string, results ...string) []string {
	var out []string
	found := false
	for _, s := range t.pkgs[dir] {
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || s.test || f.Name.Name != name || f.Recv == nil {
				continue
			}
			found = true
			if got := resultsOf(f); !slices.Equal(got, results) {
				out = append(out, fmt.Sprintf("%s: %s returns (%s): expected (%s), values that can be looked at and compared", t.at(f), name, strings.Join(got, ", "), strings.Join(results, ", ")))
			}
		}
	}
	if !found {
		out = append(out, fmt.Sprintf("%s has no method %s: mend the law", dir, name))
	}
	return out
}

// resultsOf are the types of a function's results, as they are written.
func resultsOf(f *ast.FuncDecl) []string {
	var out []string
	if f.Type.Results == nil {
		return nil
	}
	for _, r := range f.Type.Results.List {
		switch x := r.Type.(type) {
		case *ast.Ident:
			out = append(out, x.Name)
		case *ast.StarExpr:
			out = append(out, "*"+receiver(x))
		default:
			out = append(out, "?")
		}
	}
	return out
}

func TestOnlyTheRoomThatDecidesChooses(t *testing.T) { obey(t, calls(house(t), reserves)) }
func TestARefusalIsAReasonAndNoText(t *testing.T)    { obey(t, readers(house(t), wordless)) }
func TestSourcesImportNoOtherSource(t *testing.T)    { obey(t, entwined(house(t), sources, form)) }
func TestEachSubcommandHasAFile(t *testing.T)        { obey(t, strayFiles(house(t), commands)) }
func TestTheCommandReadsNoFlags(t *testing.T)        { obey(t, flagged(house(t), commands)) }
func TestADecisionIsAValue(t *testing.T) {
	obey(t, answers(house(t), "internal/route", "Decide", "Decision", "*Refusal"))
}

func TestWallsAreSeenToFail(t *testing.T) {
	tr := madeUp(t, map[string]string{
		"internal/extproc/a.go":      "package extproc\nimport p \"" + module + "/pkg/picker\"\nfunc f() {\nb.PickAndReserve()\np.Pick()\np.Picked()\n}",
		"internal/extproc/a_test.go": "package extproc\nfunc f() { b.PickAndReserve() }",
		"internal/route/a.go":        "package route\nfunc (r *Router) Decide() (Decision, *Refusal) {\nb.PickAndReserve()\nreturn err.Error()\n}\nfunc g() { log.Error(\"a\") }",
		"internal/route/sub/a.go":    "package sub\nvar x = err.Error()",
		"cmd/extproc/main.go":        "package main\nimport \"flag\"\nfunc f() {\nswitch args[0] {\ncase \"serve\", \"--serve\":\ncase \"check\":\ncase \"help\":\n}\nswitch x {\ncase \"y\":\n}\n_ = flag.ErrHelp\n}",
		"cmd/extproc/doc.go":         "package main", "cmd/extproc/serve.go": "package main", "cmd/extproc/servereach.go": "package main",
		"cmd/extproc/a_test.go": "package main\nimport \"flag\"\nvar _ = flag.Parse",
		"cmd/other/main.go":     "package main\nimport \"flag\"\nfunc f() {\nflag.Parse()\nswitch args[0] {\ncase \"a\":\n}\n}",
		"pkg/discovery/a.go":    "package discovery", "pkg/discovery/form/a.go": "package form",
		"pkg/discovery/one/a.go":      "package one\nimport (\n_ \"" + module + "/pkg/discovery\"\n_ \"" + module + "/pkg/discovery/form\"\n_ \"" + module + "/pkg/discovery/one/part\"\n)",
		"pkg/discovery/one/part/a.go": "package part", "pkg/discovery/two/a_test.go": "package two\nimport _ \"" + module + "/pkg/discovery/one\"",
		"pkg/discovery/two/a.go": "package two\nimport _ \"" + module + "/internal/between\"", "internal/between/a.go": "package between\nimport _ \"" + module + "/pkg/discovery/one\"",
		"cmd/other/util.go": "package main", "cmd/other/a.go": "package main\nfunc (T) F() error { return nil }\nfunc (T) G() {}\nfunc (T) H() []int { return nil }",
	})
	require.Equal(t, []string{
		"internal/extproc/a.go:5: calls Pick, which only internal/load, test/bench, examples/library may: who picks books in the same step, or two requests take the same room",
		"internal/extproc/a.go:4: calls PickAndReserve, which only internal/route, internal/whatif, test/bench may: who serves a request is decided in one room; whoever runs a leg does not choose",
	}, calls(tr, reserves))
	require.Equal(t, []string{"internal/route/a.go:4: reads an error's text: for the test"}, readers(tr, map[string]string{"internal/route": "for the test"}))
	require.Equal(t, []string{
		"pkg/discovery/two imports pkg/discovery/one (pkg/discovery/two → internal/between → pkg/discovery/one): a source is taken away with its folder; what sources have in common is in pkg/discovery or pkg/discovery/form",
		"pkg/discovery/two imports pkg/discovery/one/part (pkg/discovery/two → internal/between → pkg/discovery/one → pkg/discovery/one/part): a source is taken away with its folder; what sources have in common is in pkg/discovery or pkg/discovery/form",
	}, entwined(tr, "pkg/discovery", "pkg/discovery/form"))
	require.Equal(t, []string{"cmd/extproc: the subcommand check has no file of its own"}, strayFiles(tr, "cmd/extproc"))
	require.Equal(t, []string{"cmd/other/util.go: of no subcommand: what it does besides is of another room"}, strayFiles(tr, "cmd/other"))
	require.Empty(t, flagged(tr, "cmd/extproc"))
	require.Equal(t, []string{"cmd/other/main.go: reads a flag (flag.Parse): internal/config has the flags"}, flagged(tr, "cmd/other"))
	require.Empty(t, answers(tr, "internal/route", "Decide", "Decision", "*Refusal"))
	require.Equal(t, []string{"cmd/other/a.go:2: F returns (error): expected (), values that can be looked at and compared"}, answers(tr, "cmd/other", "F"))
	require.Empty(t, answers(tr, "cmd/other", "G"))
	require.Equal(t, []string{"cmd/other/a.go:4: H returns (?): expected (int), values that can be looked at and compared"}, answers(tr, "cmd/other", "H", "int"))
	require.Equal(t, []string{"cmd/other has no method I: mend the law"}, answers(tr, "cmd/other", "I"))
}
