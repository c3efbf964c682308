package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	maxFileLines = 600
	maxFuncLines = 60
	maxMethods   = 30
)

// excuse lets something break a law until a day, and not after it.
type excuse struct {
	until string // the last day, as 2026-12-31
	why   string
}

// expired reports whether the excuse is over, or never was one.
func (e excuse) expired(now time.Time) bool {
	last, err := time.Parse(time.DateOnly, e.until)
	return err != nil || e.why == "" || !now.Before(last.AddDate(0, 0, 1))
}

// manyMethods are types that have more methods than one reader can hold.
var manyMethods = map[string]excuse{
	"internal/health.Tracker":        {"2026-12-31", "who is judged, who is probed and who slows down share one lock"},
	"internal/leg.Main":              {"2026-12-31", "its phases are methods: a table of them would be read with a finger"},
	"internal/leg.attempt":           {"2026-12-31", "the same"},
	"internal/leg.pairing":           {"2026-12-31", "the same"},
	"internal/load.Book":             {"2026-12-31", "a pick and its booking share one lock with what is learned of ranks"},
	"test/node.Node":                 {"2026-12-31", "a tool that goes to a module of its own first"},
	"internal/plugin.plugin":         {"2026-12-31", "it makes and connects the parts, a method each"},
	"test/soak.world":                {"2026-12-31", "a tool that goes to a module of its own first"},
	"internal/telemetry.Instruments": {"2026-12-31", "a method for each thing that is counted"},
	"pkg/tokens.Resolver":            {"2026-12-31", "the ways to count a prompt's tokens should be types of their own"},
	"pkg/tokens/jinja.parser":        {"2026-12-31", "a method for each production of the grammar"},
	"pkg/tokens/jinja.run":           {"2026-12-31", "a method for each node of the tree"},
}

// excused are files, or folders, that may be longer. Test files need no excuse.
var excused = map[string]excuse{}

// small are rooms that stay small, by the most lines that they may have without tests.
var small = map[string]int{"cmd/extproc": 1000}

// mayReadEnvironment are the places where the environment is part of the
// interface.
var mayReadEnvironment = []string{"cmd", "test/cmd", "internal/plugin/memory.go", "examples", "test/demo", "test/examples", "test/envoytest", "test/stack", "test/bench", "test/soak", "test/faults", "test/node"}

func sleeps(t *tree) []string {
	var out []string
	t.files(func(s *source) {
		if !s.test {
			return
		}
		for _, at := range t.refers(s, "time", "Sleep") {
			out = append(out, at+": time.Sleep in a test: it is too short on a slow machine and wasted on a fast one; use testing/synctest, or wait for the event")
		}
	})
	return out
}

func inits(t *tree) []string {
	var out []string
	t.files(func(s *source) {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				out = append(out, t.at(f)+": func init: what runs before main cannot be configured, ordered or tested")
			}
		}
	})
	return out
}

func asserts(t *tree) []string {
	var out []string
	t.files(func(s *source) {
		if slices.Contains(s.imports, "github.com/stretchr/testify/assert") {
			out = append(out, s.path+": imports testify/assert: a test that goes on after a failed check reports what follows from it; use require")
		}
	})
	return out
}

func environment(t *tree) []string {
	var out []string
	t.files(func(s *source) {
		if s.test || underAny(s.path, mayReadEnvironment) {
			return
		}
		for _, at := range t.refers(s, "os", "Getenv", "LookupEnv", "Environ", "ExpandEnv") {
			out = append(out, at+": reads the environment outside cmd: configuration comes through Config, where it is seen and checked")
		}
	})
	return out
}

// clockless are packages that are told the time, with the reason.
var clockless = map[string]string{
	"internal/config":   "a file means the same whenever it is read",
	"internal/decision": "a record is told when what has happened: it is the same wherever it is read",
	"internal/leg":      "what a leg does follows from its events, which say when they happen",
	"internal/recent":   "how long an entry is held follows from the times that its owner passes",
	"internal/route":    "a decision is of one moment, which comes with the request",
}

func clocks(t *tree, clockless map[string]string) []string {
	var out []string
	t.files(func(s *source) {
		for pkg, why := range clockless {
			if s.test || !under(s.path, pkg) {
				continue
			}
			for _, at := range t.refers(s, "time", "Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep") {
				out = append(out, at+": reads a clock: "+why)
			}
		}
	})
	return out
}

// idle are packages that start nothing, with the reason.
var idle = map[string]string{
	"internal/config": "it reads and validates; internal/plugin runs the parts",
	"internal/leg":    "its runner has the goroutines; what it says is to be done is done there",
	"internal/recent": "an entry that is overdue goes with a later call, not by itself",
}

// starts returns where idle packages begin a goroutine, or open a connection or an address.
func starts(t *tree, idle map[string]string) []string {
	var out []string
	t.files(func(s *source) {
		for pkg, why := range idle {
			if s.test || !under(s.path, pkg) {
				continue
			}
			ast.Inspect(s.ast, func(n ast.Node) bool {
				if g, ok := n.(*ast.GoStmt); ok {
					out = append(out, t.at(g)+": starts a goroutine: "+why)
				}
				return true
			})
			for _, at := range t.refers(s, "net", "Listen", "ListenPacket", "ListenTCP", "ListenUnix", "Dial", "DialTimeout", "DialTCP", "DialUnix", "Dialer") {
				out = append(out, at+": opens a connection or an address: "+why)
			}
		}
	})
	return out
}

// inDecisions are names that only a decision's JSON has.
var inDecisions = []string{"token_source", "prefill_leg", "left_out", "overlap_blocks", "uncached_tokens", "decision_seconds"}

// shapes returns the structs that have the names of a decision's JSON outside of
// internal/decision. Tests may: that they read the names holds that those stay.
func shapes(t *tree) []string {
	var out []string
	t.files(func(s *source) {
		if s.test || under(s.path, "internal/decision") {
			return
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			f, ok := n.(*ast.Field)
			if !ok || f.Tag == nil {
				return true
			}
			for _, name := range inDecisions {
				if strings.Contains(f.Tag.Value, `json:"`+name+`"`) || strings.Contains(f.Tag.Value, `json:"`+name+`,`) {
					out = append(out, t.at(f)+": a shape of its own of a decision, with "+name+": read decision.Record, which there is one of")
				}
			}
			return true
		})
	})
	return out
}

// undocumented returns packages without a doc.go that documents them. Where
// there is one file, the comment may stand over that; a folder of tests alone
// needs none.
func undocumented(t *tree) []string {
	var out []string
	for _, p := range t.packages() {
		var code []*source
		for _, s := range t.pkgs[p] {
			if !s.test {
				code = append(code, s)
			}
		}
		documents := func(s *source) bool {
			place := strings.HasSuffix(s.path, "/doc.go") || s.ast.Name.Name == "main" || len(code) == 1
			return place && s.ast.Doc != nil
		}
		if len(code) > 0 && !slices.ContainsFunc(code, documents) {
			out = append(out, p+": no package comment in doc.go (or over package main, or the only file): it is where a reader begins")
		}
	}
	return out
}

func tooLong(t *tree, excused map[string]excuse) []string {
	var out []string
	used := map[string]bool{}
	note := func(p, text string) {
		for e := range excused {
			if under(p, e) {
				used[e] = true
				return
			}
		}
		out = append(out, text)
	}
	t.files(func(s *source) {
		if s.test || ast.IsGenerated(s.ast) {
			return
		}
		if s.lines > maxFileLines {
			note(s.path, fmt.Sprintf("%s: %d lines; at most %d, to be read in one sitting", s.path, s.lines, maxFileLines))
		}
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			n := t.fset.Position(f.Body.Rbrace).Line - t.fset.Position(f.Body.Lbrace).Line - 1
			if n > maxFuncLines {
				note(s.path, fmt.Sprintf("%s: %s is %d lines; at most %d, to be seen at once", t.at(f), f.Name.Name, n, maxFuncLines))
			}
		}
	})
	for e := range excused {
		if !used[e] {
			out = append(out, fmt.Sprintf("%s: excused for its length and not long: strike the excuse", e))
		}
	}
	slices.Sort(out)
	return out
}

// tooLarge returns the rooms that have outgrown their bound.
func tooLarge(t *tree, small map[string]int) []string {
	lines := map[string]int{}
	t.files(func(s *source) {
		for room := range small {
			if !s.test && under(s.path, room) {
				lines[room] += s.lines
			}
		}
	})
	var out []string
	for room, most := range small {
		if lines[room] > most {
			out = append(out, fmt.Sprintf("%s has %d lines; at most %d: move what it does besides its purpose", room, lines[room], most))
		}
	}
	slices.Sort(out)
	return out
}

// tooHandy returns the types with more methods than one reader can hold.
func tooHandy(t *tree, excused map[string]excuse) []string {
	methods := map[string]int{}
	t.files(func(s *source) {
		if s.test {
			return
		}
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				methods[path.Dir(s.path)+"."+receiver(f.Recv.List[0].Type)]++
			}
		}
	})
	var out []string
	for name, n := range methods {
		if _, is := excused[name]; n > maxMethods && !is {
			out = append(out, fmt.Sprintf("%s has %d methods; at most %d, else it is several types", name, n, maxMethods))
		}
	}
	for name := range excused {
		if methods[name] <= maxMethods {
			out = append(out, name+": excused for its methods and has few: strike the excuse")
		}
	}
	slices.Sort(out)
	return out
}

// hidden returns what is changed in the head of an if or switch, where a reader who looks
// for what a function changes does not look.
func hidden(t *tree) []string {
	var out []string
	t.files(func(s *source) {
		if s.test {
			return
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			var init ast.Stmt
			switch x := n.(type) {
			case *ast.IfStmt:
				init = x.Init
			case *ast.SwitchStmt:
				init = x.Init
			}
			switch x := init.(type) {
			case nil:
			case *ast.AssignStmt:
				if x.Tok != token.DEFINE {
					out = append(out, t.at(x)+": assigns in the head of an if or switch: give it a line of its own")
				}
			default:
				out = append(out, t.at(x)+": does something in the head of an if or switch: give it a line of its own")
			}
			return true
		})
	})
	return out
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.IndexListExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	default:
		return "?"
	}
}

func TestNoTestSleeps(t *testing.T)                   { obey(t, sleeps(house(t))) }
func TestNoPackageHasAnInit(t *testing.T)             { obey(t, inits(house(t))) }
func TestNoTestUsesAssert(t *testing.T)               { obey(t, asserts(house(t))) }
func TestOnlyTheEdgesReadTheEnvironment(t *testing.T) { obey(t, environment(house(t))) }
func TestPackagesThatAreToldTheTimeReadNoClock(t *testing.T) {
	obey(t, clocks(house(t), clockless))
}
func TestPackagesThatStartNothing(t *testing.T)       { obey(t, starts(house(t), idle)) }
func TestADecisionHasOneShape(t *testing.T)           { obey(t, shapes(house(t))) }
func TestEveryPackageIsDocumented(t *testing.T)       { obey(t, undocumented(house(t))) }
func TestFilesAndFunctionsAreShort(t *testing.T)      { obey(t, tooLong(house(t), excused)) }
func TestSmallRoomsStaySmall(t *testing.T)            { obey(t, tooLarge(house(t), small)) }
func TestTypesHaveFewMethods(t *testing.T)            { obey(t, tooHandy(house(t), manyMethods)) }
func TestNothingIsHiddenInTheHeadOfAnIf(t *testing.T) { obey(t, hidden(house(t))) }

func TestEveryExcuseHasAReasonAndADay(t *testing.T) {
	for _, list := range []map[string]excuse{excused, manyMethods, unguarded} {
		for name, e := range list {
			require.False(t, e.expired(time.Now()), "%s: excused until %q, for %q: mend it", name, e.until, e.why)
		}
	}
}

func TestFileLawsAreSeenToFail(t *testing.T) {
	long := "package a\n" + "func F() {\n" + strings.Repeat("\n", maxFuncLines+1) + "}\n" + "func G() {\n" + strings.Repeat("\n", maxFuncLines) + "}\n"
	tr := madeUp(t, map[string]string{
		"pkg/a/a.go":      "package a\nimport (\nx \"os\"\n\"time\"\n)\nfunc init() { x.Getenv(\"A\"); time.Sleep(1) }\ntype T int\nfunc (T) init() {}",
		"pkg/a/a_test.go": "package a\nimport (\nclock \"time\"\n_ \"github.com/stretchr/testify/assert\"\n)\nfunc f() { clock.Sleep(1); g := clock.Sleep; g(1) }",
		"pkg/a/long.go":   long,
		"pkg/a/many.go":   "package a\n" + strings.Repeat("func (T) F() {}\nfunc (*T) G() {}\n", maxMethods/2),
		"pkg/b/b.go":      "// not over package\n\n" + long + strings.Repeat("\n", maxFileLines),
		"pkg/c/doc.go":    "// Package c is said to be long.\npackage c",
		"pkg/c/c.go":      "package c",
		"pkg/d/d_test.go": "package d\nfunc F() {" + strings.Repeat("\n", 2*maxFileLines) + "}",
		"cmd/x/main.go":   "// Command x reads the environment.\npackage main\nimport \"os\"\nfunc main() { os.Getenv(\"A\") }",
	})
	require.Len(t, sleeps(tr), 2)
	require.Contains(t, sleeps(tr)[0], "pkg/a/a_test.go:6: time.Sleep")
	require.Len(t, inits(tr), 1)
	require.Contains(t, inits(tr)[0], "pkg/a/a.go:6: func init")
	require.Len(t, asserts(tr), 1)
	require.Len(t, environment(tr), 1)
	require.Contains(t, environment(tr)[0], "pkg/a/a.go:6: reads the environment")
	require.Equal(t, []string{"pkg/a/a.go:6: reads a clock: for the test"}, clocks(tr, map[string]string{"pkg/a": "for the test"}))
	begins := madeUp(t, map[string]string{
		"pkg/a/a.go":      "package a\nimport \"net\"\nfunc f() { go f() }\nvar x = net.Listen\nvar y net.Addr",
		"pkg/a/a_test.go": "package a\nfunc g() { go g() }", "pkg/b/b.go": "package b\nfunc f() { go f() }",
	})
	require.Equal(t, []string{"pkg/a/a.go:3: starts a goroutine: for the test", "pkg/a/a.go:4: opens a connection or an address: for the test"},
		starts(begins, map[string]string{"pkg/a": "for the test"}))
	own := func(tag string) string { return "package a\ntype d struct {\nA int `json:\"" + tag + "\"`\n}" }
	require.Equal(t, []string{"pkg/a/a.go:3: a shape of its own of a decision, with left_out: read decision.Record, which there is one of"}, shapes(madeUp(t, map[string]string{
		"pkg/a/a.go": own("left_out,omitempty"), "pkg/a/a_test.go": own("left_out"), "pkg/b/b.go": own("left_outside"), "internal/decision/a.go": own("left_out"),
	})))
	forTheTest := excuse{"2026-12-31", "for the test"}
	require.Equal(t, []string{"pkg/a.T has 31 methods; at most 30, else it is several types"}, tooHandy(tr, nil))
	require.Empty(t, tooHandy(tr, map[string]excuse{"pkg/a.T": forTheTest}))
	require.Equal(t, []string{
		"pkg/b.U: excused for its methods and has few: strike the excuse",
		"pkg/b.V: excused for its methods and has few: strike the excuse",
	}, tooHandy(madeUp(t, map[string]string{
		"pkg/b/b.go": "package b\nfunc (U) F() {}",
	}), map[string]excuse{"pkg/b.U": forTheTest, "pkg/b.V": forTheTest}))
	lastDay := time.Date(2026, 12, 31, 23, 59, 0, 0, time.UTC)
	require.False(t, forTheTest.expired(lastDay))
	require.True(t, forTheTest.expired(lastDay.Add(time.Minute)))
	require.True(t, excuse{until: "2026-12-31"}.expired(lastDay))
	require.True(t, excuse{until: "soon", why: "for the test"}.expired(lastDay))
	require.Equal(t, []string{"pkg/c has 1 lines; at most 0: move what it does besides its purpose"}, tooLarge(tr, map[string]int{"pkg/c": 0, "pkg/d": 0}))
	require.Equal(t, []string{
		"pkg/a/a.go:3: assigns in the head of an if or switch: give it a line of its own",
		"pkg/a/a.go:4: does something in the head of an if or switch: give it a line of its own",
	}, hidden(madeUp(t, map[string]string{
		"pkg/a/a.go": "package a\nfunc f(x int) {\nif x = 1; x > 0 {}\nswitch x++; x {}\nif y := x; y > 0 {}\nif x > 0 {}\n}",
	})))
	undoc := undocumented(tr)
	require.Len(t, undoc, 2)
	require.Contains(t, undoc[0], "pkg/a: no package comment")
	require.Contains(t, undoc[1], "pkg/b: ")
	require.Equal(t, []string{
		"pkg/a/long.go:2: F is 61 lines; at most 60, to be seen at once",
		"pkg/c: excused for its length and not long: strike the excuse",
	}, tooLong(tr, map[string]excuse{"pkg/b/b.go": forTheTest, "pkg/c": forTheTest}))
	require.Equal(t, []string{
		"pkg/b/b.go: 728 lines; at most 600, to be read in one sitting",
		"pkg/b/b.go:4: F is 61 lines; at most 60, to be seen at once",
	}, tooLong(tr, map[string]excuse{"pkg/a/long.go": forTheTest}))
}
