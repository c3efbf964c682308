//go:build real

package real

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/capability"
	sglangroom "github.com/seed-60ae5743/baton/internal/engine/sglang"
	vllmroom "github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/test/stack"
)

// TestEachMemberThatTheEnginesDeclareHasItsRow: of each path on which an installed engine takes a
// hand-off, each member that its class of requests declares has a row, or is a router's alone. So
// a new version of an engine shows what has to be judged.
func TestEachMemberThatTheEnginesDeclareHasItsRow(t *testing.T) {
	root, err := stack.Root()
	require.NoError(t, err)
	for name, e := range map[string]struct {
		title string
		table *capability.Table
	}{"vllm": {vllm, vllmroom.Takes}, "sglang": {sglang, sglangroom.Takes}} {
		table := e.table
		script := filepath.Join(root, "test", "real", "python", "members.py")
		out, err := exec.CommandContext(t.Context(), filepath.Join(home, name, "bin", "python"), script, name).Output()
		require.NoError(t, err, name)
		declared, without := 0, []string(nil)
		for line := range strings.Lines(string(out)) {
			path, member, _ := strings.Cut(strings.TrimSpace(line), " ")
			p, read := openai.ParsePath(path)
			if !read || !table.Takes(p) || routersAlone(p, member) {
				continue
			}
			declared++
			if !slices.ContainsFunc(table.Rows, func(r capability.Row) bool { return r.Member == member && slices.Contains(r.Paths, path) }) {
				without = append(without, path+" "+member)
			}
		}
		require.Empty(t, without, "%s: judge them from the engine's source, and write their rows", name)
		require.Greater(t, declared, 100, name)
		tellf(t, e.title, "members of requests", "%d are declared on paths that are served apart, each has its row", declared)
	}
}

// routersAlone reports whether a client that sets the member is refused.
func routersAlone(p openai.Path, member string) bool {
	var r openai.Request
	var e *openai.Error
	err := openai.Scan(p, fmt.Appendf(nil, `{"model":"m","%s":null}`, member), &r)
	return errors.As(err, &e) && e.Kind == openai.ForbiddenField
}
