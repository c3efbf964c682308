package engines

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/capability"
	"github.com/seed-60ae5743/baton/internal/pagepart"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

var rewrite = flag.Bool("rewrite", false, "write docs/engines.md, and the table of paths in docs/using.md")

// cell is how wide a list may be in a cell of a table.
const cell = 180

// TestThePageOfTheEnginesIsTheirRooms: docs/engines.md is page.md with the facts and the rows of
// the rooms. Each fact and each row names a version.
func TestThePageOfTheEnginesIsTheirRooms(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(b)
	}
	page := regexp.MustCompile(`<!-- (\.\./\w+/facts\.md) -->`).ReplaceAllStringFunc(read("page.md"), func(mark string) string {
		return strings.TrimSpace(read(strings.Fields(mark)[1]))
	})
	facts := regexp.MustCompile(`\*Seen\*:([^*]*)\*Code\*`).FindAllString(page, -1)
	require.Len(t, facts, strings.Count(page, "*Seen*:"))
	for _, f := range facts {
		require.Regexp(t, `\d\.\d|\bmain\b`, f, "of which version is it?")
	}
	var rows []string
	seen := map[*capability.Row]bool{}
	for _, e := range list {
		takes := e.HandOff.Takes
		if !strings.Contains(worker.EngineNames(), string(e.Name)) { // that of tests is not listed
			continue
		}
		if seen[&takes.Rows[0]] { // with a part of the paths of another's
			rows = append(rows, "### "+e.Pages.Title+"\n\nIts members are those of the table before. It takes a hand-off on:\n\n"+apart(takes))
		} else {
			seen[&takes.Rows[0]] = true
			rows = append(rows, "### "+e.Pages.Title+"\n\n"+written(t, takes))
		}
	}
	page = strings.Replace(page, "<!-- rows -->\n", strings.Join(rows, "\n"), 1)
	if *rewrite {
		require.NoError(t, os.WriteFile("../../../docs/engines.md", []byte(page), 0o600))
	}
	require.Equal(t, page, read("../../../docs/engines.md"), "make docs writes it")
}

// apart lists the paths on which a hand-off is taken.
func apart(table *capability.Table) (list string) {
	for _, p := range table.Paths {
		if p.Apart {
			list += "- `" + p.Pattern + "`\n"
		}
	}
	return list
}

// written returns the tables of an engine's paths and members.
func written(t *testing.T, table *capability.Table) string {
	var b strings.Builder
	line := func(cells ...string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line("paths", "served", "of", "source")
	line("---", "---", "---", "---")
	for i := 0; i < len(table.Paths); {
		first, n := table.Paths[i], 0
		for _, p := range table.Paths[i:] {
			if p.Apart != first.Apart || p.Any != first.Any || p.Source != first.Source {
				break
			}
			n++
		}
		for _, list := range lists(table.Paths[i:i+n], func(p capability.Path) string { return p.Pattern }) {
			how := map[bool]string{true: "apart", false: "by one worker"}[first.Apart]
			if first.Any {
				how += " of any role"
			}
			line(list, how, first.Source.Version, first.Source.Place)
		}
		i += n
	}
	b.WriteString("\n")
	line("paths", "members", "handed over", "of", "source")
	line("---", "---", "---", "---", "---")
	type key struct {
		paths, member string
		never         bool
	}
	seen := map[key]bool{}
	for i := 0; i < len(table.Rows); {
		first, n := table.Rows[i], 0
		paths := strings.Join(first.Paths, " ")
		for _, r := range table.Rows[i:] {
			if strings.Join(r.Paths, " ") != paths || r.Stops != first.Stops || r.Never != first.Never || r.Tokens != first.Tokens || r.Source != first.Source {
				break
			}
			k := key{paths, r.Member, r.Never}
			require.False(t, seen[k], "%v has two rows", k)
			seen[k] = true
			n++
		}
		for _, list := range lists(table.Rows[i:i+n], func(r capability.Row) string { return r.Member }) {
			stops := "yes"
			switch {
			case first.Tokens:
				stops = "yes; the prompt has other tokens"
			case first.Never:
				stops = "refused if " + first.Stops
			case first.Stops != "":
				stops = "not if " + strings.Replace(first.Stops, "not ", "other than ", 1)
			}
			line("`"+paths+"`", list, stops, first.Source.Version, first.Source.Place)
		}
		i += n
	}
	return b.String()
}

// lists returns the names of the items in lists that fit in cells.
func lists[T any](items []T, name func(T) string) (out []string) {
	list := ""
	for _, item := range items {
		text := "`" + name(item) + "`"
		if list != "" && len(list)+len(text) > cell {
			out, list = append(out, list), ""
		}
		list += strings.Repeat(", ", min(1, len(list))) + text
	}
	return append(out, list)
}

// TestThePathsThatAreServedAreThoseOfTheRooms: the tables of paths in docs/using.md are what the rooms say.
func TestThePathsThatAreServedAreThoseOfTheRooms(t *testing.T) {
	const begins, ends = "<!-- the paths begin; `make docs` writes them from the engines' rooms -->\n", "<!-- the paths end -->"
	const page = "../../../docs/using.md"
	b, err := os.ReadFile(page)
	require.NoError(t, err)
	want, err := pagepart.Replace(string(b), begins, ends, func(string) string { return pathTables() })
	require.NoError(t, err)
	if *rewrite {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o600))
	}
	require.Equal(t, want, string(b), "make docs writes it")
}

// pathTables are a table of how each engine serves a path, and one of what prevents a hand-off there.
// Left out is what goes apart nowhere and only one engine serves.
func pathTables() string {
	var b strings.Builder
	line := func(cells ...string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	titles, rules := []string{"path"}, []string{"---"}
	serves, rows := map[string][]string{}, map[string][]string{} // how, of each path by engine; paths that are served alike
	var order, likes []string
	n := 0
	for _, e := range list {
		if strings.Contains(worker.EngineNames(), string(e.Name)) { // that of tests is not listed
			titles, rules = append(titles, e.Pages.Title), append(rules, "---")
			for _, p := range e.HandOff.Takes.Paths {
				if serves[p.Pattern] == nil {
					order = append(order, p.Pattern)
				}
				serves[p.Pattern] = append(append(serves[p.Pattern], slices.Repeat([]string{"–"}, n-len(serves[p.Pattern]))...), how(p))
			}
			n++
		}
	}
	for _, path := range order {
		alike := strings.Join(append(serves[path], slices.Repeat([]string{"–"}, n-len(serves[path]))...), " | ")
		if by := strings.ReplaceAll(alike, "–", ""); !strings.Contains(by, "apart") && (serves[path][0] == "–" || strings.HasSuffix(by, " |  | ")) {
			continue
		}
		if rows[alike] == nil {
			likes = append(likes, alike)
		}
		rows[alike] = append(rows[alike], path)
	}
	slices.SortStableFunc(likes, func(a, b string) int { return strings.Count(b, "apart") - strings.Count(a, "apart") })
	line(titles...)
	line(rules...)
	for _, alike := range likes {
		for _, some := range lists(rows[alike], func(p string) string { return p }) {
			line(some, alike)
		}
	}
	b.WriteString("\n")
	line("path", "engine", "served by one worker, or refused, with")
	line("---", "---", "---")
	seen := map[*capability.Row]bool{}
	for _, e := range list {
		takes := e.HandOff.Takes
		if !strings.Contains(worker.EngineNames(), string(e.Name)) || seen[&takes.Rows[0]] { // Mooncake's are vLLM's
			continue
		}
		seen[&takes.Rows[0]] = true
		for _, p := range takes.Paths {
			var stops []string
			for _, r := range takes.Rows {
				if r.Stops != "" && !r.Never && slices.Contains(r.Paths, p.Pattern) {
					stops = append(stops, r.Member)
				}
			}
			slices.Sort(stops)
			for _, some := range lists(slices.Compact(stops), func(m string) string { return m }) {
				if some != "" && p.Apart {
					line("`"+p.Pattern+"`", e.Pages.Title, some)
				}
			}
		}
	}
	return b.String()
}

// how says who serves a path.
func how(p capability.Path) string {
	switch {
	case p.Apart:
		return "apart"
	case p.Any:
		return "any role"
	default:
		return "one worker"
	}
}
