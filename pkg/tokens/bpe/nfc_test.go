package bpe

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFormC(t *testing.T) {
	n := newNFC()
	for name, c := range map[string]struct{ text, want string }{
		"what has no marks stays":                   {"abc é 世界 한국어 😀", "abc é 世界 한국어 😀"},
		"a mark joins the letter before it":         {"e\u0301", "é"},
		"two marks join one after the other":        {"e\u0302\u0301", "ế"},
		"a lower class goes first":                  {"a\u0301\u0323", "ạ\u0301"},
		"marks that join nothing are sorted, too":   {"א\u0591\u05b0", "א\u05b0\u0591"},
		"marks of one class keep their order":       {"a\u0315\u0301\u0300", "á\u0300\u0315"},
		"a mark between keeps them apart":           {"a\u0345\u0301", "á\u0345"},
		"a mark of the same class keeps them apart": {"a\u0305\u0301", "a\u0305\u0301"},
		"another character has its place":           {"\u212b\u2126\uf900", "ÅΩ豈"},
		"what is excluded stays apart":              {"\u0958", "\u0915\u093c"},
		"syllables of Hangul":                       {"\u1112\u1161\u11ab\u1100\u1173\u1100", "한그\u1100"},
		"a syllable and a tail":                     {"\uac00\u11a8\u11a8", "각\u11a8"},
		"a mark at the beginning":                   {"\u0301a", "\u0301a"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := n.append(nil, []byte(c.text), nil)
			require.Equal(t, c.want, string(got))
			if n.is([]byte(c.text)) {
				require.Equal(t, c.want, c.text, "it was taken for what it is not")
			}
		})
	}
	require.True(t, n.is([]byte("abc é 世界 한국어 😀")), "most text is not looked at twice")
}
