package plugin

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/shadow"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/internal/whatif"
)

func (r *running) decide() {
	n := r.plugin.recorder.Decided(func(d *record.Decision) { d.At, d.Model, d.Tokens = time.Now(), "m", 10 })
	r.plugin.recorder.Ended(&record.End{Number: n, Outcome: "ok"})
}

func readRecord(t *testing.T, dir string) *record.Log {
	t.Helper()
	l := record.NewLog()
	files, err := record.Files(dir)
	require.NoError(t, err)
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		require.NoError(t, l.Read(f))
		require.NoError(t, f.Close())
	}
	l.Done()
	return l
}

func TestWhatIsDecidedIsInTheFolderWithinSecondsAndAfterADrain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	r := startPlugin(t, "record: {dir: "+dir+"}")
	r.decide()
	require.Eventually(t, func() bool { return len(readRecord(t, dir).Requests) == 1 }, 10*time.Second, 50*time.Millisecond)
	r.decide()
	r.stop()
	require.NoError(t, <-r.ended)
	r.ended <- nil
	l := readRecord(t, dir)
	require.Len(t, l.Requests, 2)
	require.Equal(t, Version(), l.Version)
	require.Nil(t, r.plugin.state().Shadow)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestAFolderThatCannotBeWrittenIsSaidOnThePage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	r := startPlugin(t, "record: {dir: "+file+"}")
	require.Empty(t, recordTroubles(r.plugin.recorder))
	r.decide()
	require.Eventually(t, func() bool { return len(recordTroubles(r.plugin.recorder)) == 1 }, 10*time.Second, 10*time.Millisecond)
	require.EqualValues(t, 1, trouble.ByKind(r.plugin.state().Troubles)[string(trouble.RecordLost)])
}

func TestNothingIsRecordedByDefault(t *testing.T) {
	r := startPlugin(t, "")
	require.Nil(t, r.plugin.recorder)
	require.Nil(t, r.plugin.shadow)
}

func TestAShadowIsShown(t *testing.T) {
	r := startPlugin(t, "shadow: {routing: {prefill: {mode: round-robin}}}")
	require.NotNil(t, r.plugin.recorder, "it is recorded in memory")
	s := r.plugin.state().Shadow
	require.NotNil(t, s)
	require.Nil(t, s.At)
	now := time.Now()
	require.Equal(t, "too few", shadowOf(&shadow.Result{At: now, Why: "too few"}).Why)
	one := &whatif.Report{Requests: 7, Span: time.Minute, Measured: &replay.Figures{Hit: 0.1}, Played: replay.Figures{Hit: 0.2}, Error: &whatif.Error{Hit: 0.01}}
	s = shadowOf(&shadow.Result{At: now, Active: one, Another: &whatif.Report{Played: replay.Figures{Hit: 0.3}}})
	require.Equal(t, []float64{0.1, 0.2, 0.3}, []float64{s.Rows[0].Hit, s.Rows[1].Hit, s.Rows[2].Hit})
	require.InDelta(t, 0.01, s.Error.Hit, 1e-9)
	require.Equal(t, 7, s.Requests)
}
