//go:build e2e

package main

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A row strikes a worker that has requests. What the modes are worth is for the drill to say, on a quiet machine.
func TestRowsOfTheDrillRunThroughARealEnvoy(t *testing.T) {
	p, err := build(t.TempDir())
	require.NoError(t, err)
	o, err := chosenDrill("kv,dynamo", "death,standstill,burst")
	require.NoError(t, err)
	for i := range o.rows {
		o.rows[i].lasts, o.rows[i].watched = min(o.rows[i].lasts, time.Second), 2*time.Second
	}
	r, err := runDrill(t.Context(), p, o, io.Discard)
	require.NoError(t, err)
	require.Len(t, r.Cells, 6)
	for _, c := range r.Cells {
		switch {
		case c.Mode == dynamoName && c.Row == rowBurst:
			require.Contains(t, c.NotRun, "-python", "without its packages it says so")
		case c.Mode == dynamoName:
			require.Equal(t, dynamoCannot, c.NotRun)
		case c.Row == rowBurst:
			require.GreaterOrEqual(t, c.Fault.Sent, 5*drillRate)
		default:
			require.Positive(t, c.OnIt, c.Row)
			require.GreaterOrEqual(t, c.Fault.Sent, 2*drillRate)
			require.Zero(t, c.Quiet.Failed, c.Row)
			require.Positive(t, c.P50, c.Row)
		}
	}
}
