package leg

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAHandOffIsAsOldAsPrefillsDateSays: the answer may have come long before it was read, if the
// process stood still. Its date tells that, and no date that cannot be true is believed.
func TestAHandOffIsAsOldAsPrefillsDateSays(t *testing.T) {
	sent := time.Date(2026, 11, 28, 12, 0, 0, int(900*time.Millisecond), time.UTC)
	received := sent.Add(40 * time.Second)
	for _, x := range []struct {
		name string
		date string
		want time.Time
	}{
		{"between the two", sent.Add(2 * time.Second).Format(http.TimeFormat), sent.Add(2 * time.Second).Truncate(time.Second)},
		{"in the second in which the leg was sent", sent.Format(http.TimeFormat), sent},
		{"a date that the engine has not written anew", sent.Add(-2 * time.Second).Format(http.TimeFormat), sent},
		{"in the second in which the answer came", received.Format(http.TimeFormat), received.Truncate(time.Second)},
		{"before the leg was sent: the worker's clock is behind", sent.Add(-3 * time.Second).Format(http.TimeFormat), received},
		{"after the answer came: the worker's clock is ahead", received.Add(time.Second).Format(http.TimeFormat), received},
		{"none", "", received},
		{"no date", "yesterday", received},
	} {
		t.Run(x.name, func(t *testing.T) {
			require.True(t, x.want.Equal(MadeAt(x.date, sent, received)), MadeAt(x.date, sent, received).String())
		})
	}
	now := time.Now()
	at := MadeAt(now.Add(-5*time.Second).UTC().Format(http.TimeFormat), now.Add(-time.Minute), now)
	require.Contains(t, at.String(), " m=", "a clock that is set later does not make it younger")
}
