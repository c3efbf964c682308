//go:build e2e

package envoytest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// childBin names the variable that makes this package's tests a child of one of them: it
// says where the commands are that have been built already.
const childBin = "ENVOYTEST_CHILD_BIN"

// notStarting are fleets that do not start, and what has to be told of them.
var notStarting = []struct {
	name, told string
	l          layout
}{
	{"a worker", "page-size", layout{prefill: 1, decode: 1, decodeArgs: []string{"--page-size=-1"}}},
	{"the plugin", "no_such_key", layout{prefill: 1, decode: 1, config: "no_such_key: 1\n"}},
	{"envoy", "no_such_field", layout{prefill: 1, decode: 1, patch: func(string) string { return "no_such_field: 1\n" }}},
}

// TestAFleetThatDoesNotStartFailsItsOwnTestAlone: where a worker, the plugin or Envoy does
// not start, what it said is told, and nothing panics, which would end all tests. They are
// tests of a child process, since they fail.
func TestAFleetThatDoesNotStartFailsItsOwnTestAlone(t *testing.T) {
	t.Parallel()
	if os.Getenv(childBin) != "" {
		for _, c := range notStarting {
			t.Run(c.name, func(t *testing.T) { newFleet(t, c.l) })
		}
		t.Run("the next", func(t *testing.T) { newFleet(t, layout{prefill: 1, decode: 1}) })
		return
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), childBin+"="+binDir)
	out, err := child.CombinedOutput()
	require.Error(t, err)
	require.NotContains(t, string(out), "panic")
	for _, c := range notStarting {
		name := strings.ReplaceAll(c.name, " ", "_")
		require.Regexp(t, `(?s)=== RUN [^\n]*/`+name+`\n.*`+c.told+`.*--- FAIL: [^\n]*/`+name+` `, string(out))
	}
	require.Regexp(t, `--- PASS: [^\n]*/the_next `, string(out))
}
