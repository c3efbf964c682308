//go:build llmd

package eppconfig

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	from    = flag.String("from", "", "a folder with the release of -release, in place of the module proxy's")
	release = flag.String("release", "", "the one release to read: MODULE@VERSION; default: all")
	write   = flag.Bool("write", false, "rewrite the verdicts")
)

// releases are those of llm-d's endpoint picker whose configurations were judged, newest first: the
// module has changed its name. verdicts has a file for each.
var releases = []string{"github.com/llm-d/llm-d-router@v0.10.0", "github.com/llm-d/llm-d-inference-scheduler@v0.5.1"}

// TestReleases compares the verdict on every configuration in llm-d's releases, in its files, its
// pages and its tests, with the one that was judged. The releases come from the module proxy; what
// it does not hand out is told, and with none of them the test fails.
func TestReleases(t *testing.T) {
	read := 0
	for _, r := range releases {
		if *release != "" && r != *release {
			continue
		}
		dir := *from
		if dir == "" {
			out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", r).Output()
			var m struct{ Dir, Error string }
			require.NoError(t, json.Unmarshal(out, &m), "%v", err)
			if m.Error != "" {
				t.Logf("NOT READ: %s", m.Error)
				continue
			}
			dir = m.Dir
		}
		read++
		got, n := verdicts(t, dir)
		require.Greater(t, n, 5, "of %s", r)
		file := filepath.Join("verdicts", strings.ReplaceAll(strings.TrimPrefix(r, "github.com/llm-d/"), "@", "-")+".txt")
		if *write {
			require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), got)
		t.Logf("%s: %d configurations as in %s", r, n, file)
	}
	require.NotZero(t, read, "no release can be read: give one with -args -release %s -from FOLDER", releases[0])
}

// verdicts has a paragraph for each configuration below dir.
func verdicts(t *testing.T, dir string) (string, int) {
	var b strings.Builder
	n := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.Contains(".yaml .md .go", filepath.Ext(path)) || filepath.Ext(path) == "" {
			return err
		}
		data, err := os.ReadFile(path)
		for i, text := range configurations(data) {
			n++
			name, _ := filepath.Rel(dir, path)
			fmt.Fprintf(&b, "%s #%d: %s\n", filepath.ToSlash(name), i+1, verdict(text))
		}
		return err
	}))
	return b.String(), n
}

func verdict(text []byte) string {
	if bytes.Contains(text, []byte("{{")) || bytes.Contains(text, []byte("%")) {
		return "a template"
	}
	c, err := Read("line", text)
	if err != nil {
		return "refused\n  " + strings.ReplaceAll(err.Error(), "\n", "\n  ")
	}
	said := "carried out"
	if len(c.Ignored()) > 0 {
		said = "warned of"
	}
	for _, x := range c.Ignored() {
		said += " " + x.Part
	}
	for _, r := range c.Roles() {
		said += "\n  " + r.Role + ": " + r.Selector
	}
	return said
}

// configurations are the parts of a text that are one: from its apiVersion to where it is indented
// less, or its quotation ends.
func configurations(data []byte) (out [][]byte) {
	lines := strings.Split(string(data), "\n")
	for i := 0; i+1 < len(lines); i++ {
		first, second := strings.TrimSpace(lines[i]), strings.TrimSpace(lines[i+1])
		if !strings.HasPrefix(first, "apiVersion:") || second != "kind: EndpointPickerConfig" {
			continue
		}
		indent := lines[i][:strings.Index(lines[i], "apiVersion:")]
		var text bytes.Buffer
		for ; i < len(lines); i++ {
			body, in := strings.CutPrefix(lines[i], indent)
			before, _, quoted := strings.Cut(body, "`")
			if !in && strings.TrimSpace(lines[i]) != "" || body == "---" || quoted && strings.TrimSpace(before) == "" {
				break
			}
			text.WriteString(body + "\n")
		}
		out = append(out, text.Bytes())
	}
	return out
}
