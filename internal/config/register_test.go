package config

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/register"
)

// To be told no is not to be told nothing.
func TestWhatWasNotGivenDoesNotBeatTheEngine(t *testing.T) {
	parse := func(args ...string) register.Override {
		fs := NewFlagSet("register", "", io.Discard)
		config := RegisterFlags(fs)
		require.NoError(t, fs.Parse(append([]string{"--engine-url", "http://127.0.0.1:30000", "--etcd-endpoints", "127.0.0.1:2379"}, args...)))
		c, err := config()
		require.NoError(t, err)
		return c.Worker.Override
	}
	require.Equal(t, register.Override{}, parse())
	require.Equal(t, register.Override{Eagle: new(false), AcceptsAggregated: new(false), KVTopic: new("")},
		parse("--eagle=false", "--accepts-aggregated=false", "--kv-events-topic="))
}

// TestEveryFlagOfRegisterIsDocumented: the tables of docs/register.md name each
// flag with its default, and no other.
func TestEveryFlagOfRegisterIsDocumented(t *testing.T) {
	fs := NewFlagSet("register", "", io.Discard)
	RegisterFlags(fs)
	want := map[string]string{}
	fs.VisitAll(func(f *flag.Flag) { want["--"+f.Name] = f.DefValue })

	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "register.md"))
	require.NoError(t, err)
	got := map[string]string{}
	for line := range strings.SplitSeq(string(page), "\n") {
		if !strings.HasPrefix(line, "| `--") {
			continue
		}
		cells := strings.Split(line, "|")
		require.Len(t, cells, 5, line)
		name := strings.Trim(cells[1], " `")
		require.NotContains(t, got, name, "documented twice")
		got[name] = strings.Trim(cells[2], " `")
		require.NotEmpty(t, strings.TrimSpace(cells[3]), line)
	}
	require.Equal(t, want, got)
}
