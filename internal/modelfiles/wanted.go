package modelfiles

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Set is one set of files that workers name.
type Set struct {
	Digest string
	Models []string         // that have it, sorted
	From   []netip.AddrPort // where it is served, sorted
}

// Wanted returns the sets that the workers name, sorted by digest, and of each model whose
// workers name different ones a text that says so. Workers that name none count as having
// the same files as the others: a trial and each answer show whether they have.
func Wanted(ws []*worker.Worker) (sets []Set, faults map[string]string) {
	models := map[string][]string{} // digests by model
	from := map[string][]netip.AddrPort{}
	for _, w := range ws {
		f := w.ModelFiles
		if f.IsZero() {
			continue
		}
		from[f.Digest] = append(from[f.Digest], netip.AddrPortFrom(w.Endpoint.AddrPort().Addr(), f.Port))
		for _, m := range w.Models {
			models[m] = append(models[m], f.Digest)
		}
	}
	faults = map[string]string{}
	by := map[string]*Set{}
	for _, m := range slices.Sorted(maps.Keys(models)) {
		digests := slices.Compact(slices.Sorted(slices.Values(models[m])))
		if len(digests) > 1 {
			faults[m] = fmt.Sprintf("its workers have different files, %d of them: expected the same --model-path for all", len(digests))
			continue
		}
		s := by[digests[0]]
		if s == nil {
			at := slices.SortedFunc(slices.Values(from[digests[0]]), netip.AddrPort.Compare)
			s = &Set{Digest: digests[0], From: slices.Compact(at)}
			by[s.Digest] = s
		}
		s.Models = append(s.Models, m)
	}
	for _, s := range by {
		sets = append(sets, *s)
	}
	slices.SortFunc(sets, func(a, b Set) int { return cmp.Compare(a.Digest, b.Digest) })
	return sets, faults
}
