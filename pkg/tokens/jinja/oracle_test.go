//go:build real

package jinja_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// python is a running oracle.py.
type python struct {
	in  io.Writer
	out *bufio.Scanner
}

func startPython(t testing.TB) *python {
	exe, err := filepath.Abs("../../../.tools/real/vllm/bin/python")
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "testdata/oracle.py")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	p := &python{in: in, out: bufio.NewScanner(out)}
	p.out.Buffer(nil, 1<<26)
	return p
}

// render is the renderer of Python.
func (p *python) render(t *testing.T, template, vars string) string {
	q, err := json.Marshal(map[string]any{"template": template, "vars": json.RawMessage(vars)})
	require.NoError(t, err)
	_, err = p.in.Write(append(q, '\n'))
	require.NoError(t, err)
	require.True(t, p.out.Scan(), "the oracle has ended: %v", p.out.Err())
	var a struct {
		Text   string
		Raises bool
	}
	require.NoError(t, json.Unmarshal(p.out.Bytes(), &a))
	if a.Raises {
		return "raises"
	}
	return quoted(a.Text)
}

// TestSnippetsArePythons plays the scenario files against Python itself. With -rewrite it
// writes what Python renders.
func TestSnippetsArePythons(t *testing.T) {
	p := startPython(t)
	datadriven.Walk(t, "testdata/snippets", func(t *testing.T, path string) { play(t, path, p.render, true) })
}

var (
	cases = flag.Uint64("cases", 2000, "random templates")
	from  = flag.Uint64("from", 0, "the first seed")
)

// TestRandomTemplatesArePythons renders random templates here and in Python (-args -cases
// 100000 is the long form). What is refused is counted.
func TestRandomTemplatesArePythons(t *testing.T) {
	p := startPython(t)
	refused, bad := map[string]int{}, 0
	equal, raised := 0, 0
	for seed := *from; seed < *from+*cases; seed++ {
		source := template(seed)
		got := ours(t, source, randomVars)
		if strings.HasPrefix(got, "refused") {
			refused[got]++
			continue
		}
		want := p.render(t, source, randomVars)
		switch {
		case want != got:
			bad++
			if bad <= 20 {
				t.Errorf("seed %d: %q\nours   %s\npython %s", seed, source, got, want)
			}
		case want == "raises":
			raised++
		default:
			equal++
		}
	}
	t.Logf("%d equal, %d raise in both, %d differ; refused:", equal, raised, bad)
	for _, k := range slices.Sorted(maps.Keys(refused)) {
		t.Logf("%6d %s", refused[k], k)
	}
}
