package activation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// NoPair says of a pool in which no two workers are a pair what its workers are: their
// engines, and where that is not why, their block sizes and the pair facts that differ.
func NoPair(p *worker.Pool) string {
	telling := tellsOf(p)
	prefill, decode := fitsOf(p.Prefill, telling), fitsOf(p.Decode, telling)
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
	telling := tellsOf(p)
	for _, side := range []struct {
		role, other worker.Role
		ws, others  []*worker.Worker
		pairs       func(worker.Fit) []worker.Rank
	}{
		{worker.Prefill, worker.Decode, p.Prefill, p.Decode, p.DecodeRanksOf},
		{worker.Decode, worker.Prefill, p.Decode, p.Prefill, p.PrefillRanksOf},
	} {
		alone := slices.DeleteFunc(slices.Clone(side.ws), func(w *worker.Worker) bool { return len(side.pairs(w.Fit())) > 0 })
		ids := make(map[worker.Fit][]string)
		for _, w := range alone {
			f := telling(w.Fit())
			ids[f] = append(ids[f], w.ID.String())
		}
		for _, f := range slices.SortedFunc(maps.Keys(ids), worker.Fit.Compare) {
			some, more := ids[f], ""
			if len(some) > mostNamed {
				some, more = some[:mostNamed], fmt.Sprintf(" and %d more", len(some)-mostNamed)
			}
			out = append(out, fmt.Sprintf("%s workers %s%s are %s, and the %s workers are %s: no two of them are a pair; start them alike",
				side.role, strings.Join(some, ", "), more, f, side.other, listed(fitsOf(side.others, telling), worker.Fit.String)))
		}
	}
	return few(out, "and %d more kinds of workers without a partner")
}

// Mixed describes each pair fact in which the prefill and decode workers of a pool differ,
// as while they are replaced: how many workers of each role have which text. It returns
// nothing if one of the roles has no workers.
func Mixed(p *worker.Pool) (out []string) {
	if len(p.Prefill) == 0 || len(p.Decode) == 0 {
		return nil
	}
	for i, texts := range textsOf(p) {
		if len(texts) > 1 {
			out = append(out, fmt.Sprintf("its workers differ in %s (prefill: %s; decode: %s): those that differ are no pair",
				worker.PairFact(i), counted(p.Prefill, i), counted(p.Decode, i))) //nolint:gosec // few
		}
	}
	return out
}

// counted says how many workers have which text of a pair fact, the commonest first.
func counted(ws []*worker.Worker, fact int) string {
	n := map[string]int{}
	for _, w := range ws {
		n[cmp.Or(w.Pair[fact], "unknown")]++
	}
	texts := slices.SortedFunc(maps.Keys(n), func(a, b string) int { return cmp.Or(cmp.Compare(n[b], n[a]), cmp.Compare(a, b)) })
	var parts []string
	for _, text := range texts {
		parts = append(parts, fmt.Sprintf("%d %s", n[text], text))
	}
	return strings.Join(few(parts, "%d more texts"), ", ")
}

// textsOf returns for each pair fact the texts that the pool's prefill and decode workers
// tell.
func textsOf(p *worker.Pool) (out [len(worker.PairFacts{})]map[string]struct{}) {
	for _, ws := range [...][]*worker.Worker{p.Prefill, p.Decode} {
		for _, w := range ws {
			for i, text := range w.Pair {
				if text == "" {
					continue
				}
				if out[i] == nil {
					out[i] = make(map[string]struct{}, 1)
				}
				out[i][text] = struct{}{}
			}
		}
	}
	return out
}

// tellsOf returns a function that leaves out of a fit the pair facts in which nobody in the
// pool differs.
func tellsOf(p *worker.Pool) func(worker.Fit) worker.Fit {
	texts := textsOf(p)
	return func(f worker.Fit) worker.Fit {
		for i := range f.Pair {
			if len(texts[i]) < 2 {
				f.Pair[i] = ""
			}
		}
		return f
	}
}

// fitsOf returns the fits of the workers as they are told.
func fitsOf(ws []*worker.Worker, telling func(worker.Fit) worker.Fit) []worker.Fit {
	fits := worker.FitsOf(ws)
	for i, f := range fits {
		fits[i] = telling(f)
	}
	return fits
}

// mostNamed is how many workers, or texts, a description names.
const mostNamed = 8

func listed(fits []worker.Fit, name func(worker.Fit) string) string {
	var names []string
	for _, f := range fits {
		if n := name(f); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return strings.Join(few(names, "%d more"), " and ")
}

// few returns the first of some texts, and counts the others in a last one.
func few(texts []string, others string) []string {
	if more := len(texts) - mostNamed; more > 0 {
		return append(texts[:mostNamed], fmt.Sprintf(others, more))
	}
	return texts
}
