package archtest

import (
	"go/ast"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// engineNames returns the engines by their constants and by their names in records.
func engineNames(t *tree) map[string]bool {
	names := map[string]bool{}
	t.files(func(s *source) {
		if s.test || !strings.HasPrefix(s.path, "pkg/worker/engine") {
			return
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if kind, named := spec.Type.(*ast.Ident); !named || kind.Name != "Engine" {
				return true
			}
			for i, v := range spec.Values {
				if text, err := strconv.Unquote(v.(*ast.BasicLit).Value); err == nil {
					names[spec.Names[i].Name], names[text] = true, true
				}
			}
			return true
		})
	})
	return names
}

// engineRooms may name an engine: the rooms, the list of the names, and what is of one engine
// itself.
var engineRooms = []string{
	"internal/engine",
	"pkg/worker/engine.go", "pkg/worker/engine_example.go", // the list
	"examples",
	// simulators, but not their core
	"test/enginesim/enginesim.go", "test/enginesim/sglang", "test/enginesim/vllm", "test/enginesim/trtllm",
	"test/enginesim/capture", "test/cmd/enginesim",
	"test/stack", "test/real", "test/node/demo", "test/soak", "test/bench", // which start engines
	"internal/route/routetest", "internal/admin/admintest", // made-up workers of tests
}

// engineNamed are the places where a file that is no engine's names an engine, by a constant
// of pkg/worker or by a text that is such a name.
func engineNamed(t *tree) []string {
	const why = ": names an engine: what an engine can is in its room below internal/engine; ask for a property"
	var out []string
	engineNames := engineNames(t)
	t.files(func(s *source) {
		if s.test || underAny(s.path, engineRooms) {
			return
		}
		local := localName(s, module+"/pkg/worker")
		ast.Inspect(s.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.SelectorExpr:
				if engineNames[n.Sel.Name] && fromPackage(n, local) {
					out = append(out, t.at(n)+why)
				}
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil && engineNames[text] {
					out = append(out, t.at(n)+why)
				}
			}
			return true
		})
		for _, spec := range s.ast.Imports {
			if p := strings.Trim(spec.Path.Value, `"`); strings.HasPrefix(p, module+"/internal/engine/") && engineNames[p[strings.LastIndexByte(p, '/')+1:]] {
				out = append(out, t.at(spec)+why)
			}
		}
	})
	return out
}

func TestOnlyItsRoomNamesAnEngine(t *testing.T) { obey(t, engineNamed(house(t))) }

func TestAFileThatNamesAnEngineIsFound(t *testing.T) {
	tr := madeUp(t, map[string]string{
		"pkg/worker/engine.go":   "package worker\ntype Engine string\nconst SGLang Engine = \"sglang\"\nconst VLLM Engine = \"vllm\"",
		"internal/a/a.go":        "package a\nimport \"" + module + "/pkg/worker\"\nvar X = worker.SGLang",
		"internal/b/b.go":        "package b\nvar X = \"vllm\"",
		"internal/c/c.go":        "package c\nimport \"" + module + "/internal/engine/vllm\"\nvar X = vllm.HandOff",
		"internal/d/d.go":        "package d\nimport \"" + module + "/pkg/worker\"\nvar X = worker.Engine(\"v\")\nvar Y = \"the engine vllm\"",
		"internal/engine/x/x.go": "package x\nimport \"" + module + "/pkg/worker\"\nvar X = worker.SGLang",
	})
	require.Len(t, engineNamed(tr), 3)
}
