package hashvectors

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vectors")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestAVectorIsReadAsItIsWritten(t *testing.T) {
	got, err := Read(write(t, "# a comment\n\nname: one\ntokens: 7 1..3 4294967295\nblock: 2\nlora: a b\nsalt: s:t\neagle: true\n"+
		"objects: - | 18446744073709551615 5\nseed: 9\nlocal: 1 2\nsequence: 1 3\n\nname: two\nblock: 4\n"))
	require.NoError(t, err)
	require.Equal(t, []Vector{
		{Name: "one", Tokens: []uint32{7, 1, 2, 3, 4294967295}, BlockSize: 2, LoRA: "a b", CacheSalt: "s:t", Eagle: true,
			Objects: [][]uint64{nil, {18446744073709551615, 5}}, Seed: 9, Local: []uint64{1, 2}, Sequence: []uint64{1, 3}},
		{Name: "two", BlockSize: 4},
	}, got)
}

func TestWhatCannotBeReadIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"a key before any name":                 "block: 4\n",
		"a line that is no key":                 "name: x\nblock\n",
		"a key twice":                           "name: x\nblock: 4\nblock: 4\n",
		"a key that is not known":               "name: x\nblocks: 4\n",
		"a token that is no number":             "name: x\ntokens: y\n",
		"a token over 32 bits":                  "name: x\ntokens: 4294967296\n",
		"a range that falls":                    "name: x\ntokens: 3..1\n",
		"a range without an end":                "name: x\ntokens: 3..\n",
		"a hash over 64 bits":                   "name: x\nlocal: 18446744073709551616\n",
		"a sequence of another length":          "name: x\nlocal: 1 2\nsequence: 1\n",
		"objects of more blocks than there are": "name: x\nobjects: 1 | 2\nlocal: 1\nsequence: 1\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(write(t, text))
			require.Error(t, err)
		})
	}
	_, err := Read(filepath.Join(t.TempDir(), "none"))
	require.Error(t, err)
}

func TestAMultimodalObjectIsReadAsItIsWritten(t *testing.T) {
	got, err := ReadObjects(write(t, "# a comment\n\nidentifier: a:b\nhash: 18446744073709551615\npad: 4294967295\n\nidentifier: c\n"))
	require.NoError(t, err)
	require.Equal(t, []Object{{Identifier: "a:b", Hash: 1<<64 - 1, Pad: 1<<32 - 1}, {Identifier: "c"}}, got)
	for name, text := range map[string]string{
		"a key before any identifier": "hash: 4\n",
		"a key that is not known":     "identifier: x\nname: 4\n",
		"a hash over 64 bits":         "identifier: x\nhash: 18446744073709551616\n",
		"a token over 32 bits":        "identifier: x\npad: 4294967296\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadObjects(write(t, text))
			require.Error(t, err)
		})
	}
}
