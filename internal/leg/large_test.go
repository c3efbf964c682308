package leg

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOfManyLargeBodiesFewComeAgainAtOnce: requests that are refused together are told
// different times.
func TestOfManyLargeBodiesFewComeAgainAtOnce(t *testing.T) {
	t.Parallel()
	at := map[time.Duration]int{}
	for i := range 1000 {
		d := largeAgain(fmt.Sprintf("5d2c%04x-0000-4000-8000-000000000000", i))
		require.GreaterOrEqual(t, d, 5*time.Second)
		require.Less(t, d, 15*time.Second)
		at[d]++
	}
	for d, n := range at {
		require.Less(t, n, 200, "%v", d)
	}
}
