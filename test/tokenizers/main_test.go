package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func archive(t *testing.T, files map[string]string) ([]byte, string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range files {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(text)), Mode: 0o600}))
		_, err := w.Write([]byte(text))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	sum := sha512.Sum512(b.Bytes())
	return b.Bytes(), "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

func TestOnlyTheModelsOfAnArchiveWithThePinnedHashAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "family")
	text, hash := archive(t, map[string]string{"package/models/tokenizer.json": "{}", "package/dist/main.js": "no",
		"package/models/../../../away": "no", "package/models/deep/x": "no"})
	require.ErrorContains(t, unpack(dir, text, "sha512-other"), "expected sha512-other")
	require.NoDirExists(t, dir)
	require.NoError(t, unpack(dir, text, hash))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	got, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	require.NoError(t, err)
	require.Equal(t, "{}", string(got))
	require.NoError(t, fetch(t.Context(), dir, pin{integrity: hash}, io.Discard), "what is whole is not fetched again")
}

func TestThePinsAreRead(t *testing.T) {
	pins := readPins(pinsText)
	require.NotEmpty(t, pins)
	require.Equal(t, "qwen3", pins[0].family)
	for _, p := range pins {
		require.Regexp(t, `^sha512-[A-Za-z0-9+/]{86}==$`, p.integrity)
		require.NotEmpty(t, p.megabytes)
	}
	require.ErrorContains(t, run(t.Context(), []string{"none"}, io.Discard), `family "none": expected one of pins.txt`)
}
