package local

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDatesAreWrittenAsByPython: the right column is what Python 3.12 gives for
// datetime(2026, 3, 7, 23, 59).strftime.
func TestDatesAreWrittenAsByPython(t *testing.T) {
	at := time.Date(2026, 3, 7, 23, 59, 0, 0, time.UTC)
	for format, want := range map[string]string{
		"%Y-%m-%d": "2026-03-07", "%d %b %Y": "07 Mar 2026", "%B %d, %Y": "March 07, 2026", "%A, %a %j %y": "Saturday, Sat 066 26",
		"": "", "Mon Jan 2": "Mon Jan 2",
	} {
		got, err := date(at, format)
		require.NoError(t, err, format)
		require.Equal(t, want, got, format)
	}
	for _, format := range []string{"%H:%M", "%Y %", "%-d", "%%", "%c"} {
		_, err := date(at, format)
		require.ErrorIs(t, err, errFormat, format)
	}
}
