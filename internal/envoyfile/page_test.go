package envoyfile_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/envoyfile"
	"github.com/seed-60ae5743/baton/internal/pagepart"
)

var rewrite = flag.Bool("rewrite", false, "write the page's table of parts anew")

// TestThePageListsTheParts: the page of one's own Envoy has the list that the check goes through.
func TestThePageListsTheParts(t *testing.T) {
	const page, begin, end = "../../examples/standalone/README.md", "<!-- parts -->\n", "<!-- end of parts -->"
	var b strings.Builder
	b.WriteString("| part | where | is | without it |\n| --- | --- | --- | --- |\n")
	for _, p := range envoyfile.Parts() {
		where := p.Where
		if p.Advised {
			where += " (advised)"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", p.ID, where, p.What, p.Without)
	}
	is, err := os.ReadFile(page)
	require.NoError(t, err)
	want, err := pagepart.Replace(string(is), begin, end, func(string) string { return b.String() })
	require.NoError(t, err)
	if *rewrite {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(is), "write it anew: make docs")
}
