package overlap

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestARankWhoseEventsTellNothingIsGuessed, although its worker names a stream of events.
func TestARankWhoseEventsTellNothingIsGuessed(t *testing.T) {
	cfg, _ := parts(t)
	told := true
	cfg.Tells = func(worker.Rank) bool { return told }
	l, err := New(cfg)
	require.NoError(t, err)
	s := fleet(t, func(int) bool { return true }, 1, 1)
	r := ranksOf(s)[0]
	chain := []kvindex.LocalHash{1, 2, 3}
	cfg.Index.Attach(r)
	cfg.Index.Route(r, chain, kvindex.Estimated, time.Unix(1, 0))
	for _, told = range []bool{true, false} {
		l.Forget()
		var a Answer
		l.Of(s, []worker.Rank{r}, Prompt{Hashes: chain}, &a)
		require.Equal(t, !told, a.Estimated.Has(0))
	}
}
