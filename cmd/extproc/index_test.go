package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestADumpWithoutRanksIsShownAsSuch(t *testing.T) {
	var b, out bytes.Buffer
	w := kvindex.NewDumpWriter(&b)
	require.NoError(t, w.Close())
	d, err := kvindex.ReadDump(&b)
	require.NoError(t, err)
	require.NoError(t, showDump(&out, d, time.Now()))
	require.Equal(t, "0 ranks, 0 different blocks in 0 runs\n", out.String())
}

// A row for each rank, those with most blocks first: blocks by tier, age, and how far its
// events were followed, where that is known.
func TestADumpIsTold(t *testing.T) {
	tree, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, kvindex.NewSlots())
	require.NoError(t, err)
	var b bytes.Buffer
	w := kvindex.NewDumpWriter(&b)
	for i, note := range []string{"{}", `{"last":41}`, `{"last":7,"degraded":true}`, "nonsense"} {
		r := worker.Rank{ID: worker.ID(i), DPRank: 1}
		tree.Attach(r)
		for n := range i + 1 {
			tier := kvindex.Device
			if n == 2 {
				tier = kvindex.Host
			}
			block := kvindex.Block{Engine: kvindex.EngineHash(10*i + n + 1), Local: kvindex.LocalHash(10*i + n + 1)}
			require.NoError(t, tree.Store(r, kvindex.Stored{Blocks: []kvindex.Block{block}, Tier: tier}))
		}
		var c kvindex.RankCopy
		require.NoError(t, tree.Copy(r, &c))
		require.NoError(t, w.Add(&c, time.Now(), []byte(note)))
	}
	require.NoError(t, w.Close())
	file := filepath.Join(t.TempDir(), "index.dump")
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))

	var out, errs bytes.Buffer
	require.Equal(t, exitOK, run(t.Context(), []string{"index", file}, &out, &errs), errs.String())
	require.Regexp(t, `^4 ranks, 10 different blocks in \d+ runs\n`+
		`rank +blocks +device +host +disk +external +age +events followed to\n`+
		`3/1 +4 +3 +1 +0 +0 +\ds +unknown\n`+
		`2/1 +3 +2 +1 +0 +0 +\ds +7, degraded\n`+
		`1/1 +2 +2 +0 +0 +0 +\ds +41\n`+
		`0/1 +1 +1 +0 +0 +0 +\ds +0\n$`, out.String())
	require.Equal(t, exitFault, run(t.Context(), []string{"index", file + ".none"}, &out, &errs))
	require.Equal(t, exitUsage, run(t.Context(), []string{"index"}, &out, &errs))
}
