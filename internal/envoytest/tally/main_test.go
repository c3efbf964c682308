package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestATableOfVersions(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, []byte(text), 0o600))
		return p
	}
	good := file("1.40.0.json", `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA/two"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: since 1.38\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"skip","Package":"without tests"}
{"Action":"pass","Package":"p"}
`)
	bad := file("1.36.4.json", `# a line of go's own
{"Action":"output","Package":"p","Test":"TestA/one","Output":"a_test.go:1: why\n"}
{"Action":"fail","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
{"ImportPath":"q","Action":"build-output","Output":"does not build\n"}
{"ImportPath":"q","Action":"build-fail"}
{"Action":"fail","Package":"q"}
{"Action":"pass","Package":"r","Test":"TestR"}
`)
	var out bytes.Buffer
	ok, err := run([]string{bad, good}, &out)
	require.NoError(t, err)
	require.False(t, ok)
	require.Equal(t, `envoy    passed   failed   skipped
1.36.4   1        2        0
1.40.0   2        0        1

1.36.4 failed: p TestA/one
    a_test.go:1: why

1.36.4 failed: q
    does not build

1.40.0 skipped: p TestB: since 1.38
`, out.String())

	ok, err = run([]string{good}, &out)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = run([]string{file("1.39.3.json", "")}, &out)
	require.NoError(t, err)
	require.False(t, ok, "nothing ran")
	_, err = run([]string{filepath.Join(dir, "none.json")}, &out)
	require.Error(t, err)
}
