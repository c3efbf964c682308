package core

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnswersAreAWordAToken(t *testing.T) {
	p := Tokenize("a prompt")
	for n := range 20 {
		text := Answer(p, n)
		require.Len(t, Tokenize(text), n)
		require.Equal(t, Tokenize(text), AnswerTokens(digest(p), 0, n))
	}
	require.True(t, strings.HasPrefix(Answer(p, 1), "d"+Digest(p)))
	require.NotEqual(t, Digest(p), Digest(Tokenize("another prompt")))
}

func FuzzALongerConversationBeginsWithTheShorter(f *testing.F) {
	f.Add("You are kind.", "hi there", "d0123 w1 w2", " and\nthen? ")
	f.Add("", "", "", "")
	f.Add("ünï", "\xff\x00 a", "  ", "日本語 text")
	f.Fuzz(func(t *testing.T, system, user, answer, more string) {
		turn := []Message{{Role: "system", Content: system}, {Role: "user", Content: user}}
		next := append(slices.Clone(turn), Message{Role: "assistant", Content: answer}, Message{Role: "user", Content: more})
		for _, generation := range []bool{true, false} {
			short, long := ChatTokens(turn, generation), ChatTokens(next, true)
			require.Greater(t, len(long), len(short))
			require.Equal(t, short, long[:len(short)])
		}
		for _, id := range ChatTokens(next, true) {
			require.Less(t, id, uint32(VocabSize))
		}
		withAnswer := ChatTokens(append(slices.Clone(turn), Message{Role: "assistant", Content: answer}), false)
		want := append(ChatTokens(turn, true), Tokenize(answer)...)
		require.Equal(t, append(want, tokenEnd), withAnswer, "generated tokens are the next turn's prefix")
	})
}
