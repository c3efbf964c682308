package plugin

import (
	"fmt"

	"github.com/seed-60ae5743/baton/internal/sides"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// mostDifferences is how many pairs the page names; it counts the others.
const mostDifferences = 8

// differences makes a trouble of each pair of workers that count the tokens of a prompt differently.
func differences(snap *worker.Snapshot, ds []sides.Difference) (out []trouble.Trouble) {
	for i, d := range ds {
		if i == mostDifferences {
			return append(out, trouble.Trouble{Kind: trouble.PairCounts, Subject: "more", Count: int64(len(ds) - i), What: fmt.Sprintf("%d more pairs like these", len(ds)-i)})
		}
		ours, alone := "", ""
		if d.Counts.Ours > 0 {
			ours = fmt.Sprintf(" (Baton: %d)", d.Counts.Ours)
		}
		if d.Alone != 0 {
			alone = ", and no other worker counts as " + d.Alone.String()
		}
		out = append(out, trouble.Trouble{Kind: trouble.PairCounts, Subject: d.Prefill.String() + " " + d.Decode.String(), What: fmt.Sprintf(
			"Of one prompt worker %s has counted %d tokens and worker %s %d%s%s",
			placed(snap, d.Prefill), d.Counts.Prefill, placed(snap, d.Decode), d.Counts.Decode, ours, alone)})
	}
	return out
}
