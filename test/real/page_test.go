//go:build real

package real

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-60ae5743/baton/internal/pagepart"
)

// page has the results written to docs/real-engines.md: the rows of those tests that ran.
var page = flag.Bool("page", false, "write what was seen to the table of docs/real-engines.md")

const (
	vllm   = "vLLM 0.32.0"
	sglang = "SGLang 0.5.23"
)

// rows are what tests have seen, by engine and what it is of.
var rows = struct {
	mu   sync.Mutex
	seen map[[2]string]string
	last map[*testing.T][2]string // the row that a test has told last
}{seen: map[[2]string]string{}, last: map[*testing.T][2]string{}}

// tellf puts a row on the page: what was seen. Of a test that is red the last row says so:
// what it tells, or what the test asks next, is not as it should be.
func tellf(t *testing.T, engine, what, format string, a ...any) {
	t.Helper()
	seen := fmt.Sprintf(format, a...)
	t.Logf("%s, %s: %s", engine, what, seen)
	row := [2]string{engine, what}
	rows.mu.Lock()
	defer rows.mu.Unlock()
	rows.last[t] = row
	t.Cleanup(func() {
		rows.mu.Lock()
		defer rows.mu.Unlock()
		if t.Failed() && rows.last[t] == row {
			seen = "**red**, here or in what its test asks next: " + seen
		}
		rows.seen[row] = seen
	})
}

const (
	tableBegins = "<!-- the table begins; make real writes it -->\n"
	tableEnds   = "<!-- the table ends -->\n"
)

// writePage replaces those rows of the table that tests have told.
func writePage(root string, now time.Time) error {
	name := filepath.Join(root, "docs", "real-engines.md")
	b, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("real: the page: %w", err)
	}
	page, err := pagepart.Replace(string(b), tableBegins, tableEnds, func(table string) string { return newTable(table, now) })
	if err != nil {
		return fmt.Errorf("real: %s: %w", name, err)
	}
	return os.WriteFile(name, []byte(page), 0o600)
}

// newTable is the table with the rows of this run.
func newTable(table string, now time.Time) string {
	lines := map[string]string{}
	for line := range strings.Lines(table) {
		if c := strings.SplitN(line, "|", 4); len(c) == 4 && !strings.HasPrefix(line, "| engine") && !strings.HasPrefix(line, "| ---") {
			lines[c[1]+"|"+c[2]] = line
		}
	}
	for k, seen := range rows.seen {
		key := fmt.Sprintf(" %s | %s ", k[0], k[1])
		lines[key] = fmt.Sprintf("|%s| %s | %s |\n", key, seen, now.Format(time.DateOnly))
	}
	var out strings.Builder
	out.WriteString("| engine | what | seen | on |\n| --- | --- | --- | --- |\n")
	for _, key := range slices.Sorted(maps.Keys(lines)) {
		out.WriteString(lines[key])
	}
	return out.String()
}
