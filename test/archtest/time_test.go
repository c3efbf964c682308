package archtest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
)

// timePage has a row for every duration of the product and of Envoy's templates.
const timePage = "docs/time.md"

// durations are values by name, each with the first place where it is written. A name is
// "package.Name" of a constant or variable, "package.Type.Field" of a field, and
// "package.Function" of a value that is written where it is used.
type durations map[string]map[time.Duration]string

func (d durations) add(name string, value time.Duration, at string) {
	if d[name] == nil {
		d[name] = map[time.Duration]string{}
	}
	if d[name][value] == "" {
		d[name][value] = at
	}
}

// clockwork stands for the package time: the laws are checked without a build, and so
// without the standard library. What else is not known of it has no type, which does no harm.
const clockwork = `package time
type Duration int64
const (
	Nanosecond Duration = 1
	Microsecond = 1000 * Nanosecond
	Millisecond = 1000 * Microsecond
	Second = 1000 * Millisecond
	Minute = 60 * Second
	Hour = 60 * Minute
)
type Time struct{}
func (Time) Sub(Time) Duration
func (Time) Add(Duration) Time
func Now() Time
func Since(Time) Duration
func Until(Time) Duration
`

// typed are the types of our own packages. It is an importer of them.
type typed struct {
	t    *tree
	info *types.Info
	done map[string]*types.Package
}

func newTyped(t *tree) (*typed, error) {
	k := &typed{t: t, done: map[string]*types.Package{"unsafe": types.Unsafe}, info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}}
	f, err := parser.ParseFile(token.NewFileSet(), "time.go", clockwork, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	k.done["time"] = k.check("time", []*ast.File{f})
	return k, nil
}

var errForeign = errors.New("not one of ours")

// Import returns a package of ours, checked as far as it can be without the others.
func (k *typed) Import(imp string) (*types.Package, error) {
	if p := k.done[imp]; p != nil {
		return p, nil
	}
	dir := folder(imp)
	if _, ours := k.t.pkgs[dir]; !ours {
		return nil, errForeign
	}
	var files []*ast.File
	for _, s := range k.t.pkgs[dir] {
		if !s.test {
			files = append(files, s.ast)
		}
	}
	k.done[imp] = k.check(imp, files)
	return k.done[imp], nil
}

// check type-checks files. Faults are expected: what is imported from elsewhere is unknown, and
// the files of several build tags are read as one package.
func (k *typed) check(imp string, files []*ast.File) *types.Package {
	conf := types.Config{Importer: k, Error: func(error) {}}
	p, _ := conf.Check(imp, k.t.fset, files, k.info)
	return p
}

// folder is the folder of an import path, which has the module's path or, of a tree's import, has not.
func folder(imp string) string {
	if imp == module {
		return "."
	}
	return strings.TrimPrefix(imp, module+"/")
}

// product are the packages that the command links, and those in pkg for other modules.
func product(t *tree) []string {
	in := map[string]bool{}
	var add func(p string)
	add = func(p string) {
		if in[p] || t.pkgs[p] == nil {
			return
		}
		in[p] = true
		for _, s := range t.pkgs[p] {
			for _, imp := range s.imports {
				if !s.test {
					add(folder(imp))
				}
			}
		}
	}
	add(commands)
	for _, p := range t.packages() {
		if under(p, "pkg") && slices.ContainsFunc(t.pkgs[p], func(s *source) bool { return !s.test }) {
			add(p)
		}
	}
	return slices.Sorted(maps.Keys(in))
}

// durationsOf are the durations that packages of the tree write down.
func durationsOf(t *tree, pkgs []string) (durations, error) {
	k, err := newTyped(t)
	if err != nil {
		return nil, err
	}
	found := durations{}
	for _, p := range pkgs {
		imp := module + "/" + p
		if p == "." {
			imp = module
		}
		if _, err := k.Import(imp); err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		for _, s := range t.pkgs[p] {
			if !s.test {
				r := durationReader{typed: k, pkg: p, found: found}
				ast.Inspect(s.ast, r.visit)
			}
		}
	}
	return found, nil
}

// durationReader finds the durations of a file.
type durationReader struct {
	*typed

	pkg   string
	found durations
	way   []ast.Node // the nodes around the one that is looked at, outermost first
}

func (r *durationReader) visit(n ast.Node) bool {
	if n == nil {
		r.way = r.way[:len(r.way)-1]
		return true
	}
	if spec, ok := n.(*ast.ValueSpec); ok && r.declaresConst() {
		for _, name := range spec.Names {
			if c, ok := r.info.Defs[name].(*types.Const); ok && isDuration(c.Type()) {
				r.add(r.scoped(name.Name), c.Val(), name)
			}
		}
		return false
	}
	if e, ok := n.(ast.Expr); ok {
		if tv := r.info.Types[e]; tv.Value != nil && isDuration(tv.Type) {
			if !r.named(e) && !r.unit(e) {
				r.add(r.name(e), tv.Value, e)
			}
			return false
		}
		r.counted(e)
	}
	r.way = append(r.way, n)
	return true
}

// add notes a value. Less than a microsecond is a number, such as the 2 of wait/2; the longest
// that there is means for ever.
func (r *durationReader) add(name string, v constant.Value, at ast.Node) {
	ns, exact := constant.Int64Val(constant.ToInt(v))
	if d := time.Duration(ns); exact && d.Abs() >= time.Microsecond && ns != 1<<63-1 {
		r.found.add(name, d, r.t.at(at))
	}
}

// counted notes the numbers of a product with a unit that is no constant: 5 and 10 of
// time.Duration(5+n%10) * time.Second. Numbers in what is called or indexed are other things,
// and one that is taken off counts something.
func (r *durationReader) counted(e ast.Expr) {
	b, ok := e.(*ast.BinaryExpr)
	if !ok || b.Op != token.MUL {
		return
	}
	number, unit := ast.Unparen(b.X), ast.Unparen(b.Y)
	if r.isUnit(number) {
		number, unit = unit, number
	}
	conversion, ok := number.(*ast.CallExpr)
	if !ok || !r.isUnit(unit) || !r.info.Types[conversion.Fun].IsType() || len(conversion.Args) != 1 {
		return
	}
	ast.Inspect(conversion.Args[0], func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.CallExpr, *ast.IndexExpr:
			return false
		case *ast.BinaryExpr:
			return x.Op != token.SUB
		case *ast.BasicLit:
			if x.Kind == token.INT {
				v := constant.MakeFromLiteral(x.Value, x.Kind, 0)
				r.add(r.name(e), constant.BinaryOp(v, token.MUL, r.info.Types[unit].Value), x)
			}
		}
		return true
	})
}

func (r *durationReader) declaresConst() bool {
	d, ok := r.around(0).(*ast.GenDecl)
	return ok && d.Tok == token.CONST
}

// around is the node so many steps outside of the one that is looked at; parentheses do not count.
func (r *durationReader) around(steps int) ast.Node {
	for i := len(r.way) - 1; i >= 0; i-- {
		if _, paren := r.way[i].(*ast.ParenExpr); paren {
			continue
		}
		if steps == 0 {
			return r.way[i]
		}
		steps--
	}
	return nil
}

// named reports whether an expression follows from constants of ours, which have rows where
// they are declared: 2*leaveTime does, leaveTime+time.Second is a duration of its own.
func (r *durationReader) named(e ast.Expr) bool {
	ours, own := false, false
	ast.Inspect(e, func(n ast.Node) bool {
		if x, ok := n.(ast.Expr); ok && r.isUnit(x) {
			own = true
			return false
		}
		if x, ok := n.(*ast.Ident); ok {
			c, is := r.info.Uses[x].(*types.Const)
			ours = ours || is && isDuration(c.Type())
		}
		return true
	})
	return ours && !own
}

// isUnit reports whether an expression is a constant of the package time.
func (r *durationReader) isUnit(e ast.Expr) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	c, ok := r.info.Uses[sel.Sel].(*types.Const)
	return ok && c.Pkg() != nil && c.Pkg().Path() == "time"
}

// unit reports whether a duration is only what others are counted in: a divisor, a factor of
// what is no constant, what is converted to a number, what a time is rounded to.
func (r *durationReader) unit(e ast.Expr) bool {
	switch x := r.around(0).(type) {
	case *ast.BinaryExpr:
		divides := (x.Op == token.QUO || x.Op == token.REM) && ast.Unparen(x.Y) == ast.Unparen(e)
		counts := (x.Op == token.MUL || x.Op == token.QUO) && r.isUnit(ast.Unparen(e))
		return divides || counts
	case *ast.CallExpr:
		if r.info.Types[x.Fun].IsType() {
			return r.isUnit(ast.Unparen(e))
		}
		sel, ok := x.Fun.(*ast.SelectorExpr)
		return ok && (sel.Sel.Name == "Round" || sel.Sel.Name == "Truncate")
	}
	return false
}

// name says which duration an expression is: the field or the variable that it is written for,
// else the function that it is written in.
func (r *durationReader) name(e ast.Expr) string {
	inner := ast.Node(e)
	for i := len(r.way) - 1; i >= 0; i-- {
		var name string
		switch x := r.way[i].(type) {
		case *ast.KeyValueExpr:
			if key, ok := x.Key.(*ast.Ident); ok && x.Value == inner {
				name = r.field(r.way[i-1].(ast.Expr), key.Name)
			}
		case *ast.AssignStmt:
			if at := slices.IndexFunc(x.Rhs, func(v ast.Expr) bool { return v == inner }); at >= 0 && len(x.Lhs) == len(x.Rhs) {
				name = r.target(x.Lhs[at])
			}
		case *ast.CallExpr:
			name = r.called(x)
		case *ast.CompositeLit:
			name = r.beside(x.Elts)
		case *ast.FuncDecl, *ast.GenDecl:
			return r.scoped("")
		}
		if name != "" {
			return name
		}
		inner = r.way[i]
	}
	return r.scoped("")
}

// called is the name by the function that an expression is given to: a flag, or a default that
// is given together with its field.
func (r *durationReader) called(x *ast.CallExpr) string {
	if len(x.Args) == 0 {
		return ""
	}
	switch f := x.Fun.(type) {
	case *ast.SelectorExpr:
		if at := slices.Index([]string{"Duration", "DurationVar"}, f.Sel.Name); at >= 0 && at < len(x.Args) { // the place of the flag's name
			if lit, ok := x.Args[at].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				return r.pkg + ".--" + strings.Trim(lit.Value, `"`)
			}
		}
		if f.Sel.Name == "Or" {
			return r.beside(x.Args)
		}
	case *ast.Ident:
		if f.Name != "min" && f.Name != "max" {
			return r.beside(x.Args)
		}
	}
	return ""
}

// beside is the field of a duration among expressions: c.Wait or &c.Wait.
func (r *durationReader) beside(list []ast.Expr) string {
	for _, e := range list {
		if u, ok := e.(*ast.UnaryExpr); ok && u.Op == token.AND {
			e = u.X
		}
		if sel, ok := e.(*ast.SelectorExpr); ok && r.info.Types[e].Value == nil {
			if name := r.target(sel); name != "" {
				return name
			}
		}
	}
	return ""
}

// target is the name of what is assigned to, if that is a duration.
func (r *durationReader) target(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		if o := r.info.Defs[x]; o != nil && isDuration(o.Type()) {
			return r.scoped(x.Name)
		}
	case *ast.SelectorExpr:
		if s := r.info.Selections[x]; s != nil && isDuration(s.Type()) {
			return r.field(x.X, x.Sel.Name)
		}
	}
	return ""
}

// field names a field of an expression: by its type, if that is one of ours.
func (r *durationReader) field(of ast.Expr, name string) string {
	t := r.info.Types[of].Type
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := t.(*types.Named); ok && n.Obj().Pkg() != nil {
		return folder(n.Obj().Pkg().Path()) + "." + n.Obj().Name() + "." + name
	}
	return r.scoped(name)
}

// scoped is a name within the function, the type or the variable that is declared around it.
func (r *durationReader) scoped(name string) string {
	out := r.pkg
	for _, n := range r.way {
		switch x := n.(type) {
		case *ast.FuncDecl:
			if x.Recv != nil {
				out += "." + receiver(x.Recv.List[0].Type)
			}
			out += "." + x.Name.Name
		case *ast.ValueSpec:
			if len(x.Names) == 1 && !strings.Contains(out[len(r.pkg):], ".") {
				out += "." + x.Names[0].Name
			}
		}
	}
	if name != "" {
		out += "." + name
	}
	return out
}

func isDuration(t types.Type) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Name() == "Duration" && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == "time"
}

var (
	yamlComment  = regexp.MustCompile(`^\s*#.*|\s#\s.*`)
	yamlDuration = regexp.MustCompile(`(?:\b([a-z_]\w*): |/([a-z_]\w*), value: )"?(\d[\d.]*m?s)\b`)
	yamlSeconds  = regexp.MustCompile(`\b(\w*Seconds|retry-after): ?(.*)`)
	retryAfter   = regexp.MustCompile(`key: (retry-after), value: "(\d+)"`)
	partBegins   = regexp.MustCompile(`\{\{-? ?define "(\w+)"`)
	partIs       = regexp.MustCompile(`\}\}(\d[\d.]*m?s)\{\{`)
	goText       = regexp.MustCompile(`\.(\w+), "(\d[\d.]*m?s)"`)
	whole        = regexp.MustCompile(`\b\d+\b`)
)

// templateDurations are those of Envoy's templates, "envoy.key", and of the chart, "charts.key".
func templateDurations(fsys fs.FS) (durations, error) {
	found := durations{}
	for _, g := range []struct {
		files, in string
		read      func(line string, add func(name, value string))
	}{
		{"envoy/*.tmpl", "envoy.", template()},
		{"envoy/*.go", "envoy.", writtenInGo},
		{"charts/baton/values.yaml", "charts.", ofChart},
		{"charts/baton/templates/*.yaml", "charts.", ofChart},
	} {
		files, err := fs.Glob(fsys, g.files)
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("%s: no such files: %w", g.files, err)
		}
		for _, p := range files {
			text, err := fs.ReadFile(fsys, p)
			if err != nil {
				return nil, err
			}
			for i, line := range strings.Split(string(text), "\n") {
				g.read(yamlComment.ReplaceAllString(line, ""), func(name, value string) {
					if d, err := time.ParseDuration(value); err == nil && d != 0 {
						found.add(g.in+name, d, fmt.Sprintf("%s:%d", p, i+1))
					}
				})
			}
		}
	}
	return found, nil
}

// template reads the lines of Envoy's templates, one after another.
func template() func(line string, add func(name, value string)) {
	part := ""
	return func(line string, add func(name, value string)) {
		if m := partBegins.FindStringSubmatch(line); m != nil {
			part = m[1]
		}
		for _, m := range yamlDuration.FindAllStringSubmatch(line, -1) {
			add(m[1]+m[2], m[3])
		}
		for _, m := range retryAfter.FindAllStringSubmatch(line, -1) {
			add(m[1], m[2]+"s")
		}
		for rest := line; ; { // a value may stand between two conditions, whose braces overlap
			at := partIs.FindStringSubmatchIndex(rest)
			if at == nil {
				return
			}
			add(part, rest[at[2]:at[3]])
			rest = rest[at[3]:]
		}
	}
}

func writtenInGo(line string, add func(name, value string)) {
	for _, m := range goText.FindAllStringSubmatch(line, -1) {
		add(m[1], m[2])
	}
}

func ofChart(line string, add func(name, value string)) {
	for _, m := range yamlDuration.FindAllStringSubmatch(line, -1) {
		add(m[1]+m[2], m[3])
	}
	if m := yamlSeconds.FindStringSubmatch(line); m != nil {
		for _, n := range whole.FindAllString(m[2], -1) {
			add(m[1], n+"s")
		}
	}
}

// timeColumns are: the names, the values, whether it is learned, what becomes of it ten times too
// short, and ten times too long.
const timeColumns = 5

// timeRow is a row of the page.
type timeRow struct {
	line   int
	names  []string
	values []time.Duration
}

var (
	codeName   = regexp.MustCompile("`([^`]+)`")
	pageValue  = regexp.MustCompile(`^(-?[0-9.]+) (ms|s|min|h|d)$`)
	pageFactor = map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "min": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
)

// timeRows reads the tables of the page.
func timeRows(text string) (rows []timeRow, faults []string) {
	head := true // the rows of a table before its rule
	for i, line := range strings.Split(text, "\n") {
		switch {
		case !strings.HasPrefix(line, "|"):
			head = true
		case strings.HasPrefix(line, "| ---"):
			head = false
		case !head:
			row, fault := readTimeRow(line)
			if row.line = i + 1; fault != "" {
				faults = append(faults, fmt.Sprintf("%s:%d: %s", timePage, i+1, fault))
			}
			rows = append(rows, row)
		}
	}
	return rows, faults
}

func readTimeRow(line string) (row timeRow, fault string) {
	cells := strings.Split(strings.Trim(line, "|"), "|")
	if len(cells) != timeColumns || slices.ContainsFunc(cells, func(c string) bool { return strings.TrimSpace(c) == "" }) {
		return row, fmt.Sprintf("expected %d cells, each with something in it", timeColumns)
	}
	for _, m := range codeName.FindAllStringSubmatch(cells[0], -1) {
		row.names = append(row.names, m[1])
	}
	for v := range strings.SplitSeq(cells[1], ",") {
		m := pageValue.FindStringSubmatch(strings.TrimSpace(v))
		if m == nil {
			return row, fmt.Sprintf("a value %q: expected numbers with ms, s, min, h or d, such as 250 ms", v)
		}
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return row, err.Error()
		}
		row.values = append(row.values, time.Duration(n*float64(pageFactor[m[2]])))
	}
	if len(row.names) == 0 {
		return row, "no name in `backquotes`"
	}
	return row, ""
}

// untimed compares what was found with the rows of the page.
func untimed(found durations, rows []timeRow) []string {
	var out []string
	told := durations{}
	for _, r := range rows {
		at := fmt.Sprintf("%s:%d", timePage, r.line)
		for _, name := range r.names {
			if found[name] == nil {
				out = append(out, fmt.Sprintf("%s: a row of %s, which there is not: strike it, or mend its name", at, name))
				continue
			}
			for _, v := range r.values {
				if found[name][v] == "" {
					out = append(out, fmt.Sprintf("%s: says %s of %s: the code says %s", at, v, name, listOf(found[name])))
				}
				told.add(name, v, at)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		for _, v := range slices.Sorted(maps.Keys(found[name])) {
			if told[name][v] == "" {
				out = append(out, fmt.Sprintf("%s: %s is %s and has no row in %s: learn it from the running system, or say there what happens when it is wrong by ten times", found[name][v], name, v, timePage))
			}
		}
	}
	return out
}

func listOf(values map[time.Duration]string) string {
	var out []string
	for _, v := range slices.Sorted(maps.Keys(values)) {
		out = append(out, v.String())
	}
	return strings.Join(out, ", ")
}

func TestEveryDurationHasARow(t *testing.T) {
	tr := house(t)
	found, err := durationsOf(tr, product(tr))
	require.NoError(t, err)
	require.Greater(t, len(found), 100, "the product's durations are not found")
	templates, err := templateDurations(os.DirFS("../.."))
	require.NoError(t, err)
	require.Greater(t, len(templates), 10, "the templates' durations are not found")
	maps.Copy(found, templates)
	page, err := os.ReadFile("../../" + timePage)
	require.NoError(t, err)
	rows, faults := timeRows(string(page))
	obey(t, faults)
	obey(t, untimed(found, rows))
}

// TestDurationsAreSeen plants durations, and what only looks like one.
func TestDurationsAreSeen(t *testing.T) {
	tr := madeUp(t, map[string]string{
		"cmd/extproc/main.go": `package main
import (
	clock "time"
	"net/http"
	"cmp"
	"` + module + `/internal/a"
)
const unit, Wait = 7, 2 * clock.Second
var pause clock.Duration = 3e9
type Config struct { Poll, Rest clock.Duration }
func (c *Config) defaults(fs *flag.FlagSet, n int) {
	c.Poll = max(cmp.Or(c.Poll, 4*clock.Second), c.Rest)
	def(&c.Rest, a.Long)
	s := http.Server{ReadTimeout: 5 * clock.Minute}
	d := fs.Duration("grace", 6*clock.Second, ""); fs.DurationVar(&c.Rest, "rest", 7*clock.Second, "")
	select {
	case <-clock.After(clock.Second):
	case <-clock.After(clock.Duration(8+n%9) * clock.Millisecond):
	}
	if c.Rest < 2*Wait || c.Rest < Wait+clock.Hour {
	}
}
func def(p *clock.Duration, v clock.Duration) {}
func units(d clock.Duration, f float64, n int) {
	_ = clock.Duration(f * float64(clock.Second))
	_ = clock.Second * clock.Duration(n-1) / clock.Duration(n)
	_, _ = d/clock.Millisecond, d/(24*clock.Hour)
	_, _ = d/2, d.Round(clock.Second)
	_, _ = clock.Duration(0), clock.Duration(1<<63-1)
}`,
		"cmd/extproc/main_test.go": "package main\nimport \"time\"\nconst ofATest = time.Second",
		"internal/a/a.go":          "package a\nimport \"time\"\nconst Long = time.Hour\nfunc f() (T, error) { return T{Kept: time.Minute}, nil }\ntype T struct { Kept time.Duration }",
		"internal/b/b.go":          "package b\nimport \"time\"\nconst NotLinked = time.Hour",
		"pkg/c/c.go":               "package c\nimport \"time\"\nfunc f() { g(90 * time.Second) }",
	})
	found, err := durationsOf(tr, product(tr))
	require.NoError(t, err)
	require.Equal(t, durations{
		"cmd/extproc.Wait":                        {2 * time.Second: "cmd/extproc/main.go:8"},
		"cmd/extproc.pause":                       {3 * time.Second: "cmd/extproc/main.go:9"},
		"cmd/extproc.Config.Poll":                 {4 * time.Second: "cmd/extproc/main.go:12"},
		"cmd/extproc.Config.defaults.ReadTimeout": {5 * time.Minute: "cmd/extproc/main.go:14"},
		"cmd/extproc.--grace":                     {6 * time.Second: "cmd/extproc/main.go:15"},
		"cmd/extproc.--rest":                      {7 * time.Second: "cmd/extproc/main.go:15"},
		"cmd/extproc.Config.defaults": {
			time.Second: "cmd/extproc/main.go:17", 8 * time.Millisecond: "cmd/extproc/main.go:18", 9 * time.Millisecond: "cmd/extproc/main.go:18",
			time.Hour + 2*time.Second: "cmd/extproc/main.go:20",
		},
		"internal/a.Long":   {time.Hour: "internal/a/a.go:3"},
		"internal/a.T.Kept": {time.Minute: "internal/a/a.go:4"},
		"pkg/c.f":           {90 * time.Second: "pkg/c/c.go:3"},
	}, found)
}

func TestDurationsOfTemplatesAreSeen(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	found, err := templateDurations(fstest.MapFS{
		"envoy/a.yaml.tmpl": file(`{{define "connects" -}}
{{if .Socket}}5s{{else}}1s{{end}}
{{- end}}
# timeout: 7s
connect_timeout: {{template "connects" .}}      # not 8s
keepalive: {interval: 5s, timeout: 0.05s}
stream_idle_timeout: 0s
- {op: add, path: /a/delayed_close_timeout, value: 50ms}
- {header: {key: retry-after, value: "1"}}
default_value: 413
`),
		"envoy/a.go":                         file("\tdef(&p.Default, \"600s\")\n"),
		"charts/baton/values.yaml":           file("preStopSeconds: 5\nrequestTimeout: 0s\ninterval: 10s"),
		"charts/baton/templates/deploy.yaml": file("graceSeconds: {{ add $e.preStopSeconds (int64 $e.x) 10 }}"),
	})
	require.NoError(t, err)
	const tmpl = "envoy/a.yaml.tmpl:"
	require.Equal(t, durations{
		"envoy.connects":              {5 * time.Second: tmpl + "2", time.Second: tmpl + "2"},
		"envoy.interval":              {5 * time.Second: tmpl + "6"},
		"envoy.timeout":               {50 * time.Millisecond: tmpl + "6"},
		"envoy.delayed_close_timeout": {50 * time.Millisecond: tmpl + "8"},
		"envoy.retry-after":           {time.Second: tmpl + "9"},
		"envoy.Default":               {10 * time.Minute: "envoy/a.go:1"},
		"charts.preStopSeconds":       {5 * time.Second: "charts/baton/values.yaml:1"},
		"charts.interval":             {10 * time.Second: "charts/baton/values.yaml:3"},
		"charts.graceSeconds":         {10 * time.Second: "charts/baton/templates/deploy.yaml:1"},
	}, found)
	_, err = templateDurations(fstest.MapFS{})
	require.ErrorContains(t, err, "envoy/*.tmpl: no such files")
}

func TestRowsOfDurationsAreSeenToFail(t *testing.T) {
	found := durations{"a.b": {time.Second: "a/a.go:1", time.Minute: "a/a.go:2"}, "a.c": {250 * time.Millisecond: "a/a.go:3"}}
	const head = "| what | value | learned? | short | long |\n| --- | --- | --- | --- | --- |\n"
	judge := func(rows string) []string {
		r, faults := timeRows("text\n" + head + rows)
		return append(faults, untimed(found, r)...)
	}
	require.Empty(t, judge("| two: `a.b` | 1 s, 1 min | no | x | y |\n| `a.c` | 250 ms | no | x | y |\n"))
	require.Empty(t, judge("| `a.b` | 1 s | no | x | y |\n| `a.b` | 1 min | no | x | y |\n| `a.c` | 250 ms | no | x | y |\n"))
	const sayOrLearn = " and has no row in docs/time.md: learn it from the running system, or say there what happens when it is wrong by ten times"
	require.Equal(t, []string{"a/a.go:2: a.b is 1m0s" + sayOrLearn, "a/a.go:3: a.c is 250ms" + sayOrLearn}, judge("| `a.b` | 1 s | no | x | y |\n"))
	require.Equal(t, []string{
		"docs/time.md:4: says 2s of a.b: the code says 1s, 1m0s",
		"docs/time.md:5: a row of a.d, which there is not: strike it, or mend its name",
		"a/a.go:1: a.b is 1s" + sayOrLearn,
	}, judge("| `a.b` | 2 s, 1 min | no | x | y |\n| `a.c`, `a.d` | 250 ms | no | x | y |\n"))
	require.Equal(t, []string{
		"docs/time.md:4: expected 5 cells, each with something in it",
		"docs/time.md:5: a value \" 1m \": expected numbers with ms, s, min, h or d, such as 250 ms",
		"docs/time.md:6: no name in `backquotes`",
	}, judge("| `a.b` | 1 s, 1 min | | x | y |\n| `a.b` | 1m | no | x | y |\n| a.b | 1 s | no | x | y |\n")[:3])
}
