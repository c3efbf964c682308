package activation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// NoPair says of a pool in which no two workers are a pair what its workers are: their
// engines, and where that is not why, their block sizes.
func NoPair(p *worker.Pool) string {
	prefill, decode := worker.FitsOf(p.Prefill), worker.FitsOf(p.Decode)
	name := func(f worker.Fit) string { return string(f.Engine) }
	if slices.ContainsFunc(prefill, func(f worker.Fit) bool {
		return slices.ContainsFunc(decode, func(o worker.Fit) bool { return f.Engine == o.Engine })
	}) {
		name = worker.Fit.String
	}
	return "prefill workers are " + listed(prefill, name) + ", its decode workers " + listed(decode, name)
}

// Unpaired describes the workers of a pool that are a pair with none of the other role's.
// It returns nothing if one of the roles has no workers.
func Unpaired(p *worker.Pool) (out []string) {
	if len(p.Prefill) == 0 || len(p.Decode) == 0 {
		return nil
	}
	for _, side := range []struct {
		role, other worker.Role
		ws, others  []*worker.Worker
		pairs       func(worker.Fit) []worker.Rank
	}{
		{worker.Prefill, worker.Decode, p.Prefill, p.Decode, p.DecodeRanksOf},
		{worker.Decode, worker.Prefill, p.Decode, p.Prefill, p.PrefillRanksOf},
	} {
		for _, f := range worker.FitsOf(side.ws) {
			if len(side.pairs(f)) > 0 {
				continue
			}
			var ids []string
			for _, w := range side.ws {
				if w.Fit() == f {
					ids = append(ids, w.ID.String())
				}
			}
			some, more := ids, ""
			if len(ids) > mostNamed {
				some, more = ids[:mostNamed], fmt.Sprintf(" and %d more", len(ids)-mostNamed)
			}
			out = append(out, fmt.Sprintf("%s workers %s%s are %s, and the %s workers are %s: no two of them are a pair; start them with one engine and one block size",
				side.role, strings.Join(some, ", "), more, f, side.other, listed(worker.FitsOf(side.others), worker.Fit.String)))
		}
	}
	return out
}

// mostNamed is how many workers a description names.
const mostNamed = 8

func listed(fits []worker.Fit, name func(worker.Fit) string) string {
	var names []string
	for _, f := range fits {
		if n := name(f); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return strings.Join(names, " and ")
}
