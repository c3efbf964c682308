package plugin

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// TestASlowReaderOfADumpDoesNotStretchThePauseBetweenDumps: the pause after a
// dump is a multiple of its own length, which the wait for a reader is no part of.
func TestASlowReaderOfADumpDoesNotStretchThePauseBetweenDumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, err := kvevents.NewSubscriber(kvevents.Config{Index: newTestTree(t)})
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "index.dump")
		p := &plugin{
			cfg: config.Config{Index: config.IndexConfig{Dump: path, DumpInterval: time.Minute}}, events: events, dumping: make(chan struct{}, 1), server: new(extproc.Server),
			log: slog.New(slog.DiscardHandler), tele: &telemetry.Telemetry{Instruments: new(telemetry.Instruments)},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- p.keepIndex(ctx) }()
		<-time.After(30 * time.Second)
		slow, out := io.Pipe()
		defer slow.Close() //nolint:errcheck // it never fails
		go func() { ended <- p.dumpIndex(out) }()
		<-time.After(90 * time.Second)
		require.NoFileExists(t, path, "one at a time")
		go func() { _, _ = io.Copy(io.Discard, slow) }()
		synctest.Wait()
		require.NoError(t, <-ended)
		require.FileExists(t, path)
		require.NoError(t, os.Remove(path))
		<-time.After(time.Minute)
		synctest.Wait()
		require.FileExists(t, path)
		cancel()
		require.NoError(t, <-ended)
	})
}

func newTestTree(t *testing.T) *kvindex.Tree {
	tree, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, kvindex.NewSlots())
	require.NoError(t, err)
	return tree
}
