package plugin

import (
	"fmt"
	"strings"

	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/internal/loads"
	"github.com/seed-60ae5743/baton/internal/trouble"
)

// lossMeans says what engines count, and what to do.
var lossMeans = []struct {
	kind            ask.Loss
	means, then, do string
}{
	{ask.ReadLate, "Decode workers have fetched KV after its lease", "Their answers and caches may belong to other prompts",
		"Give the engines a longer lease, with the same prefill.handoff_lease, and start the decode workers anew"},
	{ask.Expired, "The lease of hand-offs has ended before their KV was fetched", "",
		"See why decodes come late or not at all, or give the engines a longer lease, with the same prefill.handoff_lease"},
	{ask.Failed, "Transfers of KV have failed", "", "See the engines' logs, and the network between them"},
}

// mostLosers is how many workers such a trouble names.
const mostLosers = 3

// lossTroubles makes one trouble of each kind of losses.
func lossTroubles(ls []loads.Loss) (out []trouble.Trouble) {
	for _, m := range lossMeans {
		var who []string
		more := 0
		for _, l := range ls {
			switch {
			case l.Kind != m.kind:
			case len(who) == mostLosers:
				more++
			default:
				who = append(who, fmt.Sprintf("%s (id %s) counts %d, the last at %s", l.Address, l.Worker, l.N, l.Last.UTC().Format("15:04:05 MST")))
			}
		}
		if more > 0 {
			who = append(who, fmt.Sprintf("and %d more", more))
		}
		if len(who) > 0 {
			out = append(out, trouble.Trouble{Kind: trouble.HandOffLost, Subject: string(m.kind), What: m.means + ": " + strings.Join(who, "; "), Effect: m.then, Do: m.do})
		}
	}
	return out
}
