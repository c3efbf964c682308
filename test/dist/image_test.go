package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/require"
)

var made = time.Unix(1_790_000_000, 0).UTC()

func twoBinaries() []binary {
	return []binary{
		{arch: "amd64", content: []byte("a program"), version: "v1.2.3", revision: "abc"},
		{arch: "arm64", content: []byte("another"), version: "v1.2.3", revision: "abc"},
	}
}

// written returns the index of the image in a new layout.
func written(t *testing.T, binaries []binary) v1.ImageIndex {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	digest, err := writeImage(dir, binaries, made)
	require.NoError(t, err)
	all, err := layout.ImageIndexFromPath(dir)
	require.NoError(t, err)
	idx, err := all.ImageIndex(digest)
	require.NoError(t, err)
	return idx
}

func TestTheImageRunsOnBothArchitecturesAsNobody(t *testing.T) {
	binaries := twoBinaries()
	idx := written(t, binaries)
	require.NoError(t, validate.Index(idx))
	manifest, err := idx.IndexManifest()
	require.NoError(t, err)
	require.Len(t, manifest.Manifests, 2)
	for i, m := range manifest.Manifests {
		require.Equal(t, binaries[i].arch, m.Platform.Architecture)
		img, err := idx.Image(m.Digest)
		require.NoError(t, err)
		c, err := img.ConfigFile()
		require.NoError(t, err)
		require.Equal(t, binaries[i].arch, c.Architecture)
		require.Equal(t, []string{"/extproc"}, c.Config.Entrypoint)
		require.Equal(t, "65532:65532", c.Config.User)
		require.Equal(t, "v1.2.3", c.Config.Labels["org.opencontainers.image.version"])
		require.Equal(t, []string{
			"-rwxr-xr-x extproc " + string(binaries[i].content), "drwxr-xr-x app/", "Lrwxrwxrwx app/epp -> /extproc",
			"Lrwxrwxrwx lwepp -> /extproc", "drwxr-xr-x bin/", "Lrwxrwxrwx bin/sleep -> /extproc", "dtrwxrwxrwx tmp/",
		}, filesOf(t, img))
	}
}

func filesOf(t *testing.T, img v1.Image) []string {
	t.Helper()
	layers, err := img.Layers()
	require.NoError(t, err)
	require.Len(t, layers, 1)
	r, err := layers[0].Uncompressed()
	require.NoError(t, err)
	defer r.Close()
	var out []string
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		require.Equal(t, []int{0, 0}, []int{h.Uid, h.Gid}, "who runs it cannot change it")
		line := h.FileInfo().Mode().String() + " " + h.Name
		switch h.Typeflag {
		case tar.TypeSymlink:
			line += " -> " + h.Linkname
		case tar.TypeReg:
			content, err := io.ReadAll(files)
			require.NoError(t, err)
			line += " " + string(content)
		}
		out = append(out, line)
	}
}

func TestTheSameBinariesMakeTheSameImage(t *testing.T) {
	digest := func(b []binary) v1.Hash {
		d, err := written(t, b).Digest()
		require.NoError(t, err)
		return d
	}
	first := digest(twoBinaries())
	require.Equal(t, first, digest(twoBinaries()))
	changed := twoBinaries()
	changed[1].content = []byte("changed")
	require.NotEqual(t, first, digest(changed))
}

func TestABinaryThatTheImageCannotRunIsRefused(t *testing.T) {
	require.ErrorContains(t, lean([]byte("#!/bin/sh")), "no program for Linux")
	shell, err := os.ReadFile("/bin/sh")
	require.NoError(t, err)
	require.ErrorContains(t, lean(shell), "not static")
}

func TestAVersionIsATag(t *testing.T) {
	require.Equal(t, "1.2.4-dirty", tag("1.2.4+dirty"))
	require.Equal(t, "1.2.4-rc.1", tag("1.2.4-rc.1"))
}

func TestTheTimeOfWhatIsBuilt(t *testing.T) {
	at, err := timeOf(t.Context(), ".", "1790000000")
	require.NoError(t, err)
	require.Equal(t, made, at)
	_, err = timeOf(t.Context(), ".", "yesterday")
	require.EqualError(t, err, `-time: expected seconds since 1970, found "yesterday"`)
}

func TestAFolderThatIsEmptiedIsBelowTheRoot(t *testing.T) {
	for _, out := range []string{".", "..", "../elsewhere", ""} {
		require.ErrorContains(t, run(t.Context(), out, "", io.Discard), "expected a folder below the repository's root")
	}
}
