package bpe

import (
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// FuzzLoad: no file ends the process, and what loads encodes.
func FuzzLoad(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	f.Add(tinyBytes(r, "").text(f))
	f.Add(tinyCharacters(r).text(f))
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":1},"merges":["a a"]}}`))
	f.Fuzz(func(t *testing.T, file []byte) {
		k, err := Load(file, Limits{})
		if err != nil {
			return
		}
		_, err = k.NewEncoder().Append(nil, []byte("a text, <s> 12\n\n"), true)
		require.NoError(t, err)
	})
}

// FuzzEncode: the ways to encode a text give the same ids.
func FuzzEncode(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 10 {
		f.Add(tinyText(r, 10), uint8(r.IntN(10)))
	}
	f.Add("\xff", uint8(0))
	kinds := make([]*Tokenizer, 10)
	for i := range kinds {
		kinds[i] = tinyCharacters(r).load(f)
		if i%2 == 0 {
			kinds[i] = tinyBytes(r, "").load(f)
		}
	}
	f.Fuzz(func(t *testing.T, text string, kind uint8) {
		k := kinds[int(kind)%len(kinds)]
		got, err := k.NewEncoder().Append(nil, []byte(text), false)
		if !utf8.ValidString(text) {
			require.ErrorIs(t, err, ErrNotUTF8)
			return
		}
		require.NoError(t, err)
		e := k.NewEncoder()
		s := NewSegments(k, 1<<16)
		for range 2 {
			again, err := s.Append(e, nil, []byte(text), false)
			require.NoError(t, err)
			require.Equal(t, got, again)
		}
	})
}
