package eppconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// The scenario files have a configuration as input. The verb read shows whether it splits
// prefill from decode, the rules of its filters by labels and its warning, or its faults.
func TestSchedulers(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			c, err := Read("c.yaml", []byte(strings.ReplaceAll(d.Input, "\t", "    ")))
			if err != nil {
				require.Zero(t, c)
				return err.Error() + "\n"
			}
			split := "one worker\n"
			if c.Splits() {
				split = "prefill and decode apart\n"
			}
			for _, r := range c.Roles() {
				split += r.Role + ": " + r.Selector + "\n"
			}
			return split + strings.ReplaceAll(c.Warning(), "; ", ";\n  ") + "\n"
		})
	})
}

// TestThePageHasTheTableOfPlugins compares docs/gateway-api.md with it.
func TestThePageHasTheTableOfPlugins(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "gateway-api.md"))
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(page), "\n### The scheduler's configuration\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	var rows, want []string
	for line := range strings.SplitSeq(section, "\n") {
		if strings.HasPrefix(line, "| `") {
			rows = append(rows, line)
		}
	}
	seen := map[string]bool{}
	for _, r := range table() {
		for _, kind := range r.types {
			require.False(t, seen[kind], kind)
			seen[kind] = true
		}
		fates := [...]string{same: "a counterpart: ", lacking: "none: ", refused: "refused: "}
		want = append(want, "| `"+strings.Join(r.types, "` `")+"` | "+fates[r.fate]+r.text+" |")
	}
	require.Equal(t, want, rows)
}

// FuzzRead holds that whatever is read ends in a configuration or in faults.
func FuzzRead(f *testing.F) {
	for _, s := range []string{"", "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: []\n", `{"plugins":[{"type":"queue-scorer","parameters":{"a":[1]}}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Read("c.yaml", data)
		if err != nil {
			require.Zero(t, c)
		}
	})
}
