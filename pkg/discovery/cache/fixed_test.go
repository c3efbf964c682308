package cache

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestWhatIsOfNoUseAfterARestartIsNotKept(t *testing.T) {
	at, err := worker.ParseEndpoint("10.0.0.7:8001")
	require.NoError(t, err)
	w := &worker.Worker{ID: 7, Role: worker.Aggregated, Endpoint: at, DPSize: 1, FactsUnknown: true, Fixed: worker.FactKVEvents}
	kept := known([]discovery.Entry{{Key: "a", Worker: w}})
	_, err = written("", kept)
	require.NoError(t, err)
	require.Zero(t, kept[0].Worker.Fixed)
	require.Equal(t, worker.FactKVEvents, w.Fixed, "the worker itself is shared")
}

// TestAWorkerWhoseRecordHasExpiredIsKeptAsItsRecordWas: that it drains is the plugin's own
// judgement, which the next start makes anew. The lease tells that start that the worker has not
// been withdrawn if its record is gone.
func TestAWorkerWhoseRecordHasExpiredIsKeptAsItsRecordWas(t *testing.T) {
	expired, draining, forever := entry(1), entry(2), entry(3)
	expired.Worker.Expired, expired.Worker.Draining, expired.Lease = true, true, 10*time.Second
	draining.Worker.Draining, draining.Lease = true, 90*time.Second
	path := filepath.Join(t.TempDir(), "last.yaml")
	w := newWriter(path, "etcd baton", slog.New(slog.DiscardHandler))
	require.True(t, w.write(known([]discovery.Entry{expired, draining, forever})))

	s, err := New(Config{Path: path, Identity: "etcd baton", Inner: newScript()})
	require.NoError(t, err)
	s.load()
	got, served := s.Before()
	require.False(t, served)
	require.Len(t, got, 3)
	require.Equal(t, []time.Duration{10 * time.Second, 90 * time.Second, 0}, []time.Duration{got[0].Lease, got[1].Lease, got[2].Lease})
	require.True(t, got[0].Worker.Equal(made(1)))
	require.True(t, got[1].Worker.Draining)
	require.True(t, expired.Worker.Draining, "the worker itself is shared")

	require.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(-25*time.Hour)))
	s, err = New(Config{Path: path, Identity: "etcd baton", Inner: newScript()})
	require.NoError(t, err)
	s.load()
	got, _ = s.Before()
	require.Empty(t, got, "other processes may have the addresses by now")
}
