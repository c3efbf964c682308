package pagepart_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/pagepart"
)

func TestWhatIsBetweenTheMarksIsReplaced(t *testing.T) {
	got, err := pagepart.Replace("a <b> is <c> d <c>", "<b>", "<c>", func(is string) string { return is + "and was " })
	require.NoError(t, err)
	require.Equal(t, "a <b> is and was <c> d <c>", got)
	for _, page := range []string{"", "<c> <b>", "<b>", "<c>"} {
		_, err := pagepart.Replace(page, "<b>", "<c>", func(is string) string { return is })
		require.ErrorContains(t, err, "the page lacks the mark", page)
	}
}
