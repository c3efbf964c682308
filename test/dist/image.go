package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// binary is one architecture's extproc.
type binary struct {
	arch     string // as GOARCH has it, which is how OCI has it
	content  []byte
	version  string
	revision string // of the commit; empty if the toolchain has recorded none
}

// userOfImage is the user and the group that the image runs as: the nonroot user of
// distroless images, which the charts of other pickers name, too.
const userOfImage = "65532:65532"

// index returns an index of one image for each binary, all made at that time.
func index(binaries []binary, at time.Time) (v1.ImageIndex, error) {
	out := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range binaries {
		img, err := image(b, at)
		if err != nil {
			return nil, fmt.Errorf("image for %s: %w", b.arch, err)
		}
		out = mutate.AppendManifests(out, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: b.arch}},
		})
	}
	return out, nil
}

func image(b binary, at time.Time) (v1.Image, error) {
	files, err := layerOf(b.content, at)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: at}, CreatedBy: "make dist"},
	})
	if err != nil {
		return nil, err
	}
	c, err := img.ConfigFile() // which has the layers
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = "linux", b.arch, v1.Time{Time: at}
	c.Config = v1.Config{
		Entrypoint: []string{"/extproc"},
		User:       userOfImage,
		WorkingDir: "/",
		StopSignal: "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "baton",
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.version":  b.version,
			"org.opencontainers.image.revision": b.revision,
		},
	}
	return mutate.ConfigFile(img, c)
}

// layerOf returns the image's files as a tar archive.
func layerOf(content []byte, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range []tar.Header{
		{Name: "extproc", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))},
		{Name: "app/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "app/epp", Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: "/extproc"},
		{Name: "lwepp", Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: "/extproc"},
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "bin/sleep", Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: "/extproc"},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
	} {
		h.ModTime, h.Format = at, tar.FormatUSTAR
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
