package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLongLinesAreFoldedBelowTheirLastColumn(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"short":                     {"a b", "a b"},
		"at a space":                {"aaaa bbbb cccc dddd eeee", "aaaa bbbb cccc dddd\neeee"},
		"indented":                  {"  aaaa bbbb cccc dddd eeee", "  aaaa bbbb cccc\n  dddd eeee"},
		"a column":                  {"  x1  y   bbbb cccc dddd ee", "  x1  y   bbbb cccc\n          dddd ee"},
		"a column too narrow":       {"  x1 yyyy yyyyyy  bb cccc", "  x1 yyyy yyyyyy  bb\n  cccc"},
		"a word too long":           {"aaa bbbbbbbbbbbbbbbbbbbbbbbbbbb", "aaa\nbbbbbbbbbbbbbbbbbbbbbbbbbbb"},
		"colours count for nothing": {"\x1b[31maaaa bbbb cccc dddd\x1b[0m", "\x1b[31maaaa bbbb cccc dddd\x1b[0m"},
		"each line for itself":      {"a\naaaa bbbb cccc dddd eeee\n", "a\naaaa bbbb cccc dddd\neeee\n"},
	} {
		require.Equal(t, c.want, fold(c.text, 20), name)
		require.Equal(t, c.text, fold(c.text, 0), name)
	}
}

func TestWhatTakesAWhileSaysHowLong(t *testing.T) {
	var out bytes.Buffer
	s := &screen{w: &out}
	require.NoError(t, s.working("Building it", func() error { return nil }))
	require.Regexp(t, `^Building it \.* [0-9.]+ s\n$`, out.String())
	require.ErrorIs(t, s.working("x", func() error { return io.ErrUnexpectedEOF }), io.ErrUnexpectedEOF)
	require.Equal(t, 2, strings.Count(out.String(), "\n"))
}
