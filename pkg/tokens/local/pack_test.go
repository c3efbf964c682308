package local_test

import (
	"archive/tar"
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestPackedFilesComeBack(t *testing.T) {
	for _, f := range []local.Files{
		{Tokenizer: tokenizer()},
		{Tokenizer: tokenizer(), Config: []byte(config)},
		{Tokenizer: tokenizer(), Config: []byte(config), Template: []byte("{{ messages }}")},
		{Tokenizer: []byte{}},
	} {
		packed, err := f.Pack()
		require.NoError(t, err)
		again, err := f.Pack()
		require.NoError(t, err)
		require.Equal(t, packed, again)
		require.NoError(t, worker.CheckDigest(local.Digest(packed)))
		back, err := local.Unpack(packed)
		require.NoError(t, err)
		require.Equal(t, f, back)
	}
}

func TestAnArchiveOfOtherFilesIsRefused(t *testing.T) {
	archive := func(headers ...tar.Header) []byte {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, h := range headers {
			require.NoError(t, w.WriteHeader(&h))
			_, err := w.Write(make([]byte, h.Size))
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
		return out.Bytes()
	}
	one := tar.Header{Name: "tokenizer.json", Size: 3, Mode: 0o644}
	long := tar.Header{Name: "chat_template.jinja", Size: 1<<20 + 1, Mode: 0o644}
	for name, c := range map[string]struct {
		packed []byte
		want   string
	}{
		"nothing":      {archive(), "unpack: expected tokenizer.json"},
		"twice":        {archive(one, one), `"tokenizer.json" of 3 bytes: expected each file of a model once`},
		"another name": {archive(one, tar.Header{Name: "../x", Mode: 0o644}), `"../x" of 0 bytes`},
		"a link":       {archive(tar.Header{Name: "tokenizer.json", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}), "expected each file"},
		"too long":     {archive(one, long), `"chat_template.jinja" of 1048577 bytes`},
		"cut":          {archive(one)[:514], "unpack tokenizer.json"},
		"junk":         {bytes.Repeat([]byte("junk"), 200), "unpack: "},
	} {
		_, err := local.Unpack(c.packed)
		require.ErrorContains(t, err, c.want, name)
	}
}
