package leg

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/wire"
)

// Clients write the number as their language does, and ask for more than they may have.
func TestEveryPositiveNumberOfMillisecondsIsATimeOut(t *testing.T) {
	r := &Rules{DefaultTimeout: 10 * time.Minute, MaxTimeout: time.Hour}
	now := time.Now()
	for said, want := range map[string]time.Duration{
		"": 10 * time.Minute, "1500": 1500 * time.Millisecond, "30000.0": 30 * time.Second, "1e3": time.Second, "0.5": 500 * time.Microsecond,
		"3600001": time.Hour, "3000000000": time.Hour, "9007199254740991": time.Hour,
	} {
		q := Request{Headers: wire.Headers{Timeout: said}}
		require.Nil(t, q.setDeadline(now, now, r), said)
		require.Equal(t, now.Add(want), q.Deadline, said)
	}
	for _, said := range []string{"soon", "0", "-5", "nan", "inf", " 5", "5ms", "99999999999999999999"} {
		q := Request{Headers: wire.Headers{Timeout: said}}
		require.Equal(t, &failBadTimeout, q.setDeadline(now, now, r), said)
	}
}
