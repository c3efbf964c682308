package cache

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// disk is a slow disk.
type disk struct {
	takes  time.Duration
	hang   chan struct{} // not nil: a write waits until it is closed
	fails  atomic.Bool
	begun  atomic.Int64
	at     atomic.Int64 // how many writes are in progress
	most   atomic.Int64
	latest atomic.Pointer[[]discovery.Entry]
}

func (d *disk) replace(ws []discovery.Entry) error {
	d.begun.Add(1)
	d.most.Store(max(d.most.Load(), d.at.Add(1)))
	defer d.at.Add(-1)
	if d.hang != nil {
		<-d.hang
	}
	<-time.After(d.takes)
	if d.fails.Load() {
		return errors.New("no space left")
	}
	d.latest.Store(&ws)
	return nil
}

// onDisk returns a source that writes to d, and the script of its inner source.
func onDisk(t *testing.T, d *disk) (*Source, *script) {
	in := newScript()
	src, err := New(Config{Inner: in, Path: filepath.Join(t.TempDir(), "last.yaml")})
	require.NoError(t, err)
	src.w.replace = d.replace
	return src, in
}

// list makes the inner source send a listing.
func (s *script) list(revision uint64, ids ...uint64) {
	s.do <- func(sink discovery.Sink) (bool, error) {
		l := discovery.List{Revision: revision}
		for _, id := range ids {
			l.Entries = append(l.Entries, entry(id))
		}
		return true, sink.Send(l)
	}
}

func (s *script) end(err error) {
	s.do <- func(discovery.Sink) (bool, error) { return false, err }
}

func TestADiskThatHangsHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{hang: make(chan struct{})}
		src, in := onDisk(t, d)
		v, stop := startView(t, src)
		// Stream after stream breaks, and the view becomes fresh again each time.
		for n := range uint64(20) {
			in.list(n+1, n+1)
			synctest.Wait()
			require.NotNil(t, v.Load().Worker(worker.ID(n+1)), "%d", n)
			require.False(t, v.Load().Stale())
			in.end(errors.New("connection lost"))
			<-time.After(5 * time.Second) // for the pause of the view, and breakWait
			synctest.Wait()
		}
		began := time.Now()
		stop()
		require.LessOrEqual(t, time.Since(began), endWait)
		require.Equal(t, int64(1), d.begun.Load(), "nobody queues for a disk that hangs")

		close(d.hang)
		synctest.Wait() // the bubble would not end if a goroutine were left
		<-time.After(time.Second)
		require.Equal(t, int64(1), d.most.Load(), "two writes at once")
		d.requireHas(t, 20, "the latest is written in the end")
	})
}

// If a Run ends for good on a slow disk, it has written. If another Run follows, the
// writer writes the rest.
func TestWhatIsUnwrittenAtTheEndOfRunIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{takes: time.Second}
		src, in := onDisk(t, d)
		done := make(chan error, 1)
		go func() { done <- src.Run(t.Context(), &careful{}) }()
		in.list(1, 1)
		synctest.Wait()
		in.list(2, 2)
		began := time.Now()
		in.end(errors.New("connection lost"))
		require.Error(t, <-done)
		require.Equal(t, breakWait, time.Since(began))

		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- src.Run(ctx, &careful{}) }()
		in.list(3, 3)
		cancel()
		require.NoError(t, <-done)
		d.requireHas(t, 3)
		require.Equal(t, int64(1), d.most.Load())
	})
}

// In the Run after one that hurried the writer, the writer pauses again.
func TestASlowDiskIsLeftAloneMostOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{takes: 100 * time.Millisecond}
		src, in := onDisk(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		for first := range uint64(2) {
			go func() { done <- src.Run(ctx, &careful{}) }()
			before := d.begun.Load()
			for n := range uint64(1000) { // in 10 s
				in.list(1000*first+n+1, 1+n%3)
				<-time.After(10 * time.Millisecond)
			}
			require.InDelta(t, 10, d.begun.Load()-before, 1, "one of 100 ms each 1.1 s")
			if first == 0 {
				in.end(errors.New("connection lost"))
				require.Error(t, <-done)
			}
		}
		cancel()
		require.NoError(t, <-done)
	})
}

func TestAWriteThatFailsIsTriedAgainUnlessThereIsANewerSetOrAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{takes: time.Second}
		d.fails.Store(true)
		src, in := onDisk(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- src.Run(ctx, &careful{}) }()
		in.list(1, 1)
		synctest.Wait()
		in.list(2, 2) // while the first listing is being written
		<-time.After(2 * time.Second)
		d.fails.Store(false)
		require.Equal(t, int64(1), d.begun.Load(), "not before the pause is over")
		<-time.After(retry + time.Second)
		require.Equal(t, int64(2), d.begun.Load())
		d.requireHas(t, 2, "the newer one")

		d.fails.Store(true)
		in.list(3, 3)
		cancel()
		require.NoError(t, <-done)
		<-time.After(time.Minute)
		synctest.Wait()
		require.Equal(t, int64(3), d.begun.Load(), "tried once more, and no more")
	})
}

// spoiler is a sink that overwrites the slices that it receives, as it may.
type spoiler struct{}

func (spoiler) Send(ev discovery.Event) error {
	switch ev := ev.(type) {
	case discovery.List:
		clear(ev.Entries)
	case discovery.Batch:
		clear(ev.Ops)
	}
	return nil
}

func TestWhatTheSinkDoesToItsListsIsNotRemembered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last.yaml")
	src, err := New(Config{Path: path, Inner: inner(func(_ context.Context, sink discovery.Sink) error {
		return errors.Join(
			sink.Send(discovery.List{Revision: 1, Entries: []discovery.Entry{entry(1), entry(2)}}),
			sink.Send(discovery.Batch{Revision: 2, Ops: []discovery.Op{discovery.Put(entry(3))}}),
		)
	})})
	require.NoError(t, err)
	require.NoError(t, src.Run(t.Context(), spoiler{}))
	requireFile(t, path, 1, 2, 3)
}

// picky is a sink that refuses one event and accepts those after it.
type picky struct{ refuses uint64 }

func (p picky) Send(ev discovery.Event) error {
	if b, ok := ev.(discovery.Batch); ok && b.Revision == p.refuses {
		return discovery.ErrResync
	}
	return nil
}

func TestAfterARefusalNothingIsRememberedBeforeAListing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last.yaml")
	src, err := New(Config{Path: path, Inner: inner(func(_ context.Context, sink discovery.Sink) error {
		_ = sink.Send(discovery.List{Revision: 1, Entries: []discovery.Entry{entry(1), entry(2)}})
		_ = sink.Send(discovery.Batch{Revision: 2, Ops: []discovery.Op{discovery.Put(entry(3))}})
		_ = sink.Send(discovery.Batch{Revision: 3, Ops: []discovery.Op{discovery.Delete(key(1), 0)}})
		return nil
	})})
	require.NoError(t, err)
	require.NoError(t, src.Run(t.Context(), picky{2}))
	requireFile(t, path, 1, 2) // not worker 2 alone: there was no such set
}

// requireHas checks that the disk has one worker.
func (d *disk) requireHas(t *testing.T, id uint64, msg ...any) {
	t.Helper()
	got := *d.latest.Load()
	require.Len(t, got, 1, msg...)
	require.True(t, got[0].Worker.Equal(made(id)), msg...)
}
