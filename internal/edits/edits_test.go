package edits

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// distance is the least number of edits that makes b of a, by the table that textbooks have.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			last, row[j+1] = row[j+1], min(last+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func TestWithinIsTheLeastNumberOfEdits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	word := func() string {
		w := make([]byte, rng.IntN(8))
		for i := range w {
			w[i] = "ab_"[rng.IntN(3)]
		}
		return string(w)
	}
	for range 5000 {
		a, b := word(), word()
		for edits := range 5 {
			require.Equal(t, distance(a, b) <= edits, Within(a, b, edits), "%q, %q, %d", a, b, edits)
		}
	}
}
