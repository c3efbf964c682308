package worker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// PairFact is a fact, besides engine and block size, that the workers of a pair have in
// common: KV of one is of no use to a worker where it is another.
type PairFact uint8

// The facts. An engine's room says which of them its workers must share, by what it reads
// (docs/engines.md); KVGroup is an operator's own word for it.
const (
	KVGroup       PairFact = iota // any text: workers of two groups are no pair
	EngineVersion                 // of the engine's program
	Weights                       // the path and the revision of the model, as the engine names them
	KVDType                       // the type of the numbers in the KV cache
	pairFacts
)

var pairFactNames = [pairFacts]string{"kv_group", "engine_version", "weights", "kv_dtype"}

// String returns the name of the fact, as in a record.
func (f PairFact) String() string { return pairFactNames[f] }

// PairFacts has the text of each [PairFact]. An empty text is not known.
type PairFacts [pairFacts]string

// String lists all facts for logs and pages: "kv_group a, engine_version unknown, …".
func (p PairFacts) String() string {
	for i, text := range p {
		p[i] = cmp.Or(text, "unknown")
	}
	return p.known()
}

// known lists the facts that are known.
func (p PairFacts) known() string {
	var out []string
	for i, text := range p {
		if text != "" {
			out = append(out, pairFactNames[i]+" "+text)
		}
	}
	return strings.Join(out, ", ")
}

// Fit is what a prefill and a decode worker must have in common to be a pair: each engine
// hands KV over in a way of its own, and block by block (docs/behaviour.md#one-hand-off).
// It is comparable. Two different fits may still [Fit.Fits] each other.
type Fit struct {
	Engine    Engine
	BlockSize uint32
	Pair      PairFacts
}

// Fit returns the fit of w. It means something only of a worker that is Complete.
func (w *Worker) Fit() Fit { return Fit{w.Engine, w.BlockSize, w.Pair} }

// Fits reports whether workers of f and o are a pair: of one engine and one block size, and
// alike in each pair fact that both tell. What one of them does not tell keeps nobody
// apart, so that a may fit b, and b may fit c, and a not c.
func (f Fit) Fits(o Fit) bool {
	if f.Engine != o.Engine || f.BlockSize != o.BlockSize {
		return false
	}
	for i := range f.Pair {
		if a, b := f.Pair[i], o.Pair[i]; a != b && a != "" && b != "" {
			return false
		}
	}
	return true
}

// Difference says in what f and o differ, so that they do not fit: the first such thing,
// with both values. It returns "" if they fit.
func (f Fit) Difference(o Fit) string {
	switch {
	case f.Engine != o.Engine:
		return "engines"
	case f.BlockSize != o.BlockSize:
		return fmt.Sprintf("block sizes, %d and %d tokens", f.BlockSize, o.BlockSize)
	}
	for i, text := range f.Pair {
		if other := o.Pair[i]; text != other && text != "" && other != "" {
			return fmt.Sprintf("%s, %s and %s", pairFactNames[i], text, other)
		}
	}
	return ""
}

// String names the fit for logs, pages and errors.
func (f Fit) String() string {
	text := fmt.Sprintf("%s with blocks of %d tokens", f.Engine, f.BlockSize)
	if facts := f.Pair.known(); facts != "" {
		text += ", " + facts
	}
	return text
}

// Compare orders fits by engine, then by block size, then by their facts, for
// slices.SortFunc.
func (f Fit) Compare(o Fit) int {
	return cmp.Or(cmp.Compare(f.Engine, o.Engine), cmp.Compare(f.BlockSize, o.BlockSize), slices.Compare(f.Pair[:], o.Pair[:]))
}

// FitsOf returns the fits of the workers, sorted, each once.
func FitsOf(ws []*Worker) (out []Fit) {
	seen := make(map[Fit]struct{}, 1)
	for i, w := range ws {
		f := w.Fit()
		if i > 0 && f == ws[i-1].Fit() {
			continue
		}
		if _, is := seen[f]; !is {
			seen[f] = struct{}{}
			out = append(out, f)
		}
	}
	slices.SortFunc(out, Fit.Compare)
	return out
}
