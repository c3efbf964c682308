package heap

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

type element struct{ key, at int }

func (e *element) Before(o *element) bool { return e.key < o.key }
func (e *element) Place() *int            { return &e.at }

// Random calls leave a heap with what a plain list has, the least of it first, and each element
// knows its place.
func TestAHeapDoesWhatAPlainListDoes(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var h Heap[*element]
		var all []*element
		for range 300 {
			do := r.IntN(5)
			switch {
			case do < 2 || len(all) == 0:
				e := &element{key: r.IntN(20)}
				all = append(all, e)
				h.Put(e)
			case do == 2:
				e := h.First()
				h.Remove(e)
				require.Equal(t, -1, e.at)
				all = slices.Delete(all, slices.Index(all, e), slices.Index(all, e)+1)
			case do == 3:
				i := r.IntN(len(all))
				h.Remove(all[i])
				require.Equal(t, -1, all[i].at)
				all = slices.Delete(all, i, i+1)
			default:
				e := all[r.IntN(len(all))]
				e.key = r.IntN(20)
				h.Fix(e)
			}
			require.ElementsMatch(t, all, []*element(h), "seed %d", seed)
			for i, e := range h {
				require.Equal(t, i, e.at, "seed %d", seed)
			}
			if len(all) == 0 {
				require.Nil(t, h.First())
				continue
			}
			least := slices.MinFunc(all, func(a, b *element) int { return a.key - b.key })
			require.Equal(t, least.key, h.First().key, "seed %d", seed)
		}
	}
}
