//go:build clients

package clients

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/pagepart"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// exception is what a client sees otherwise on one column than alone, with a reason.
type exception struct {
	path   string
	name   string // of the case; "": of all
	col    column
	status int
	reason string
}

const noStore = "what continues a response that nobody keeps gets 400 apart: one worker would have to keep it"

var exceptions = []exception{
	{"/v1/messages", "", column{worker.SGLang, true}, http.StatusNotImplemented, "SGLang's messages drop the members of a hand-off: apart they get 501"},
	{"/v1/embeddings", "refused", column{worker.SGLang, true}, http.StatusNotImplemented, "no worker there serves what is not split: 501; elsewhere the engine says 404"},
	{"/v1/responses", "unknown previous response", column{worker.VLLM, true}, http.StatusBadRequest, noStore},
	{"/v1/responses", "unknown previous response", column{worker.SGLang, true}, http.StatusBadRequest, noStore},
}

// exceptionOf returns the index of the exception that a line is, or -1.
func exceptionOf(col column, l *line) int {
	return slices.IndexFunc(exceptions, func(e exception) bool {
		return e.path == l.Path && e.col == col && e.status == l.Status && (e.name == "" && l.Fails != "" || e.name == l.Case)
	})
}

// book is what clients have seen.
type book struct {
	mu   sync.Mutex
	saw  map[row]map[column][]*line
	used map[int]bool // exceptions
	told map[string]bool

	loads map[row]map[column]bool
}

// row is a row of the page.
type row struct{ client, version, path string }

var seen = book{saw: map[row]map[column][]*line{}, used: map[int]bool{}, told: map[string]bool{}, loads: map[row]map[column]bool{}}

// add notes what a client saw. A failure without an exception is one of the test.
func (b *book) add(t *testing.T, col column, l *line) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := exceptionOf(col, l); i >= 0 {
		b.used[i] = true
	} else if l.Fails != "" {
		t.Errorf("%s: %s", col, l)
	}
	r := row{l.Client, l.Version, l.Path}
	if b.saw[r] == nil {
		b.saw[r] = map[column][]*line{}
	}
	b.saw[r][col] = append(b.saw[r][col], l)
}

// tell notes a row of the second table.
func (b *book) tell(l *line, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told[fmt.Sprintf("| %s | %s | `%s` | %s | %s |\n", l.Client, l.Version, l.Path, l.Case, what)] = true
}

// loaded notes that a load tool's report has no failure.
func (b *book) loaded(r row, col column) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loads[r] == nil {
		b.loads[r] = map[column]bool{}
	}
	b.loads[r][col] = true
}

// requireAlike compares what clients saw apart with what they saw alone, case by case.
func (b *book) requireAlike(t *testing.T) {
	t.Helper()
	for r, cols := range b.saw {
		for _, col := range columns {
			alone := cols[column{col.engine, false}]
			require.Len(t, cols[col], len(alone), "%v %s", r, col)
			for i, l := range cols[col] {
				if exceptionOf(col, l) < 0 {
					require.JSONEq(t, string(alone[i].Saw), string(l.Saw), "%s: %s", col, l)
				}
			}
		}
	}
	for i, e := range exceptions {
		require.True(t, b.used[i], "no client met the exception %v", e)
	}
}

// sorted returns the rows of a table.
func sorted[V any](of map[row]V) []row {
	return slices.SortedFunc(maps.Keys(of), func(x, y row) int {
		return cmp.Or(cmp.Compare(strings.ToLower(x.client), strings.ToLower(y.client)), cmp.Compare(x.path, y.path))
	})
}

// text is a row of the first table: what is in its columns, and remarks.
func (r row) text(cells, remarks []string) string {
	all := slices.Concat([]string{r.client, r.version, "`" + r.path + "`"}, cells, []string{strings.Join(remarks, "; ")})
	return "| " + strings.Join(all, " | ") + " |\n"
}

// rows are those of the first table: of a client how many of its cases came out as they have to, of a load
// tool how many of its requests failed.
func (b *book) rows() []string {
	var out []string
	for _, r := range sorted(b.saw) {
		var cells, remarks []string
		for _, col := range columns {
			lines := b.saw[r][col]
			well := 0
			for _, l := range lines {
				if l.Fails == "" {
					well++
				}
				if i := exceptionOf(col, l); i >= 0 && !slices.Contains(remarks, exceptions[i].reason) {
					remarks = append(remarks, exceptions[i].reason)
				}
			}
			cells = append(cells, fmt.Sprintf("%d of %d", well, len(lines)))
		}
		out = append(out, r.text(cells, remarks))
	}
	for _, r := range sorted(b.loads) {
		var cells []string
		for _, col := range columns {
			cells = append(cells, map[bool]string{true: "0 failed", false: "not run"}[b.loads[r][col]])
		}
		out = append(out, r.text(cells, nil))
	}
	return out
}

const (
	tableBegins = "<!-- the tables begin; make clients writes them -->\n"
	tableEnds   = "<!-- the tables end -->\n"
)

// writePage replaces the tables of docs/clients.md.
func (b *book) writePage(root string) error {
	name := filepath.Join(root, "docs", "clients.md")
	old, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("clients: the page: %w", err)
	}
	head := "| client | version | path |"
	for _, col := range columns {
		head += " " + col.String() + " |"
	}
	head += " remark |\n| --- | --- | --- |" + strings.Repeat(" --- |", len(columns)+1) + "\n"
	more := "\n| client | version | path | case | seen |\n| --- | --- | --- | --- | --- |\n" + strings.Join(slices.Sorted(maps.Keys(b.told)), "")
	page, err := pagepart.Replace(string(old), tableBegins, tableEnds, func(string) string {
		return "\n" + head + strings.Join(b.rows(), "") + more + "\n"
	})
	if err != nil {
		return fmt.Errorf("clients: %s: %w", name, err)
	}
	return os.WriteFile(name, []byte(page), 0o600)
}
