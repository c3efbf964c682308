package archtest

import (
	"fmt"
	"go/ast"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sideBySide is the package whose tests run fleets of processes, and mostly wait.
const sideBySide = "test/envoytest"

// alone are its tests that run while no other does, each with its reason.
var alone = map[string]string{
	"TestTwoThousandRequestsInFlight":         "all of them have to be in flight at once",
	"TestBodiesBeyondTheBudgetAreRefused":     "it fills what memory it has, with two processors' work",
	"TestFiveHundredLargeBodiesInOneGibibyte": "the same",
}

// serial returns tests of a package that neither begin with t.Parallel() nor are
// excused.
func serial(t *tree, pkg string, excused map[string]string) []string {
	var out []string
	used := map[string]bool{}
	for _, s := range t.pkgs[pkg] {
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || f.Name.Name == "TestMain" {
				continue
			}
			_, mayBe := excused[f.Name.Name]
			used[f.Name.Name] = mayBe
			if parallel := beginsParallel(f); parallel == mayBe {
				out = append(out, fmt.Sprintf("%s: %s: begins with t.Parallel() %t, is on the list of those that run alone %t: it mostly waits, so others run meanwhile, unless the list says why not",
					t.at(f), f.Name.Name, parallel, mayBe))
			}
		}
	}
	for name := range excused {
		if !used[name] {
			out = append(out, pkg+": "+name+" runs alone, says the list, and is not there")
		}
	}
	return out
}

func beginsParallel(f *ast.FuncDecl) bool {
	if len(f.Body.List) == 0 {
		return false
	}
	stmt, ok := f.Body.List[0].(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := stmt.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Parallel"
}

func TestTestsThroughEnvoyRunSideBySide(t *testing.T) { obey(t, serial(house(t), sideBySide, alone)) }

func TestSerialTestsAreSeen(t *testing.T) {
	tr := madeUp(t, map[string]string{"a/a_test.go": `package a
func TestA(t *testing.T) { t.Parallel() }
func TestB(t *testing.T) { x() ; t.Parallel() }
func TestC(t *testing.T) { t.Parallel() }
func TestD(t *testing.T) {}
func TestMain(m *testing.M) {}
func helper() {}
`})
	got := serial(tr, "a", map[string]string{"TestC": "why", "TestD": "why", "TestE": "why"})
	require.Len(t, got, 3)
	require.Contains(t, got[0], "TestB: begins with t.Parallel() false")
	require.Contains(t, got[1], "TestC: begins with t.Parallel() true")
	require.Contains(t, got[2], "TestE runs alone")
}
