package kvindex

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
)

// seedFlag is of all model tests.
var seedFlag = flag.Uint64("model.seed", 0, "seed of the model tests; 0: from the clock")

// slow says that this is the race detector's build, in which tests have fewer rounds.
const slow = MostBytes < 1<<28

// fewRounds reports whether random tests run only a part of their rounds: under the
// race detector, and with -short, as in make test-unit.
func fewRounds() bool { return slow || testing.Short() }

func newTree(t testing.TB, slots *Slots) *Tree {
	return newTreeOf(t, slots, TreeConfig{MaxBytes: 32 << 20, NoHugePages: true})
}

func newTreeOf(t testing.TB, slots *Slots, c TreeConfig) *Tree {
	tr, err := NewTree(c, slots)
	require.NoError(t, err)
	return tr
}
