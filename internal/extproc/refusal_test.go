package extproc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/pin"
)

func TestEveryFaultInWhatARequestNamesHasARow(t *testing.T) {
	t.Parallel()
	for _, k := range []pin.Kind{
		pin.Malformed, pin.Conflict, pin.NotNamed, pin.Unknown, pin.Gone, pin.WrongModel, pin.WrongRole, pin.Draining,
		pin.NotUsable, pin.NeedsOther, pin.RankTooHigh, pin.Unfit,
	} {
		row := *leg.FailureOf(string(k))
		f := pinned(&pin.Error{Kind: k, Param: "x-header", Subject: "what is wrong"})
		require.Equal(t, string(k), f.Code)
		require.Equal(t, "x-header", f.Param)
		require.Equal(t, row.Message+": x-header: what is wrong.", f.Message)
		require.Equal(t, row, *leg.FailureOf(string(k)), "the row itself stays")
	}
}
