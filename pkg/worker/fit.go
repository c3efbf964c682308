package worker

import (
	"cmp"
	"fmt"
	"slices"
)

// Fit is what a prefill and a decode worker must have in common to be a pair: each engine
// hands KV over in a way of its own, and block by block (docs/behaviour.md#one-hand-off).
type Fit struct {
	Engine    Engine
	BlockSize uint32
}

// Fit returns the fit of w. It means something only of a worker that is Complete.
func (w *Worker) Fit() Fit { return Fit{w.Engine, w.BlockSize} }

// String names the fit for logs, pages and errors.
func (f Fit) String() string {
	return fmt.Sprintf("%s with blocks of %d tokens", f.Engine, f.BlockSize)
}

// Compare orders fits by engine, then by block size, for slices.SortFunc.
func (f Fit) Compare(o Fit) int {
	return cmp.Or(cmp.Compare(f.Engine, o.Engine), cmp.Compare(f.BlockSize, o.BlockSize))
}

// FitsOf returns the fits of the workers, sorted, each once.
func FitsOf(ws []*Worker) (out []Fit) {
	for _, w := range ws {
		if !slices.Contains(out, w.Fit()) {
			out = append(out, w.Fit())
		}
	}
	slices.SortFunc(out, Fit.Compare)
	return out
}
