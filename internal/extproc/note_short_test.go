package extproc

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestWhatIsShownOfALongNameKeepsNoneOfTheRest: a record is kept long after its request, and
// must not keep the whole name in memory.
func TestWhatIsShownOfALongNameKeepsNoneOfTheRest(t *testing.T) {
	t.Parallel()
	for _, long := range []string{strings.Repeat("m", 1<<20), "/v1/completions?" + strings.Repeat("q", 1<<20)} {
		got := short(long)
		require.LessOrEqual(t, len(got), mostShown)
		require.NotSame(t, unsafe.StringData(long), unsafe.StringData(got))
	}
	require.Equal(t, "/v1/completions", short("/v1/completions?key=secret"))
}
