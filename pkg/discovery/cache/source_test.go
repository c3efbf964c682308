package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/syncbuf"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestFaultsOfTheConfigurationAreNamed(t *testing.T) {
	_, err := New(Config{Patience: -1, MaxAge: -1, Identity: "a\nb"})
	require.ErrorContains(t, err, "max age -1ns: expected a duration above 0")
	require.ErrorContains(t, err, `identity "a\nb": expected one line`)
	require.ErrorContains(t, err, "inner: expected the source to remember")
	require.ErrorContains(t, err, "path: expected the file to remember it in")
	require.ErrorContains(t, err, "patience -1ns: expected a duration above 0")
}

// startView runs a view over the source until stop is called.
func startView(t *testing.T, src discovery.Source) (v *discovery.View, stop func()) {
	t.Helper()
	v, err := discovery.New(discovery.Config{Sources: []discovery.Named{{Name: "store", Source: src}}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	return v, func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// TestAViewThatStartsWhileTheStoreIsAwayServesWhatWasKnown tests
// docs/behaviour.md#state-survives on a small scale: the plugin starts, stops, and
// starts without its store; then the store returns.
func TestAViewThatStartsWhileTheStoreIsAwayServesWhatWasKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "made", "last.yaml")
		first := newScript()
		src, err := New(Config{Inner: first, Path: path})
		require.NoError(t, err)
		v, stop := startView(t, src)
		first.do <- func(sink discovery.Sink) (bool, error) {
			return true, sink.Send(discovery.List{Epoch: "e", Revision: 40, Entries: []discovery.Entry{entry(1), entry(2)}})
		}
		require.NoError(t, v.WaitReady(t.Context()))
		require.False(t, v.Load().Stale())
		stop()

		second := newScript()
		src, err = New(Config{Inner: second, Path: path})
		require.NoError(t, err)
		v, stop = startView(t, src)
		<-time.After(1999 * time.Millisecond)
		synctest.Wait()
		require.False(t, v.Ready())
		<-time.After(time.Millisecond)
		synctest.Wait()
		require.True(t, v.Ready())
		require.True(t, v.Load().Stale())
		require.Len(t, v.Load().Workers(), 2)
		require.Equal(t, made(1), v.Load().Worker(1))
		require.Contains(t, v.Status().Sources[0].LastError, "the store has not answered for 2s: serving the 2 workers that were known at ")

		for range 3 { // the source is run repeatedly, and the workers stay served
			second.do <- func(discovery.Sink) (bool, error) { return false, errors.New("connection refused") }
			<-time.After(10 * time.Second)
			synctest.Wait()
			require.True(t, v.Load().Stale())
			require.Len(t, v.Load().Workers(), 2)
			require.Contains(t, v.Status().Sources[0].LastError, "connection refused: serving the 2 workers that were known at ")
		}
		kept := v.Load().Worker(2)
		second.do <- func(sink discovery.Sink) (bool, error) {
			return true, sink.Send(discovery.List{Epoch: "e", Revision: 3, Entries: []discovery.Entry{entry(2), entry(3)}})
		}
		synctest.Wait()
		require.False(t, v.Load().Stale())
		require.Nil(t, v.Load().Worker(1))
		require.Same(t, kept, v.Load().Worker(2), "who did not change is not disturbed")
		require.NotNil(t, v.Load().Worker(3))
		stop()
		requireFile(t, path, 2, 3)
	})
}

func requireFile(t *testing.T, path string, want ...uint64) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	ws, err := record.ParseList(path, data)
	require.NoError(t, err)
	var got []uint64
	for _, w := range ws {
		got = append(got, uint64(w.ID))
	}
	require.Equal(t, want, got)
}

// refuser is a sink that refuses everything.
type refuser struct{ err error }

func (r refuser) Send(discovery.Event) error { return r.err }

func TestWhatTheSinkRefusesIsNotRememberedAndItsErrorIsPassedBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last.yaml")
	refused := fmt.Errorf("%w: no", discovery.ErrResync)
	got := make(chan error, 1)
	src, err := New(Config{Path: path, Inner: inner(func(_ context.Context, sink discovery.Sink) error {
		got <- sink.Send(discovery.List{Revision: 1, Entries: []discovery.Entry{entry(1)}})
		return nil
	})})
	require.NoError(t, err)
	require.NoError(t, src.Run(t.Context(), refuser{refused}))
	require.Equal(t, refused, <-got)
	require.NoFileExists(t, path)
}

type inner func(ctx context.Context, sink discovery.Sink) error

func (f inner) Run(ctx context.Context, sink discovery.Sink) error { return f(ctx, sink) }

func TestAWorkerThatTheFileCannotHoldDoesNotCostTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "last.yaml")
		var log syncbuf.Buffer
		in := newScript()
		src, err := New(Config{Inner: in, Path: path, Logger: logger(&log)})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- src.Run(ctx, &careful{}) }()
		odd := entry(2)
		odd.Worker.DPSize, odd.Worker.KVEvents = 2, worker.KVEvents{Host: "10.0.0.1", Port: 65535} // there is no port for the second rank
		revision := uint64(0)
		list := func(es ...discovery.Entry) {
			revision++
			in.do <- func(sink discovery.Sink) (bool, error) {
				return true, sink.Send(discovery.List{Revision: revision, Entries: es})
			}
			<-time.After(interval)
			synctest.Wait()
		}
		list(entry(1), odd, entry(3))
		list(entry(1), odd, entry(3), entry(4))
		requireFile(t, path, 1, 3, 4)
		require.Equal(t, 1, strings.Count(log.String(), "some workers cannot be remembered"), log.String())
		list(entry(1), entry(2))
		requireFile(t, path, 1, 2)
		require.Contains(t, log.String(), "all workers are saved again")
		cancel()
		require.NoError(t, <-done)
	})
}

// careful is a sink that counts calls that overlap or come after the end.
type careful struct {
	busy, closed atomic.Bool
	faults       atomic.Int32
	set          discovery.Reducer
}

func (c *careful) Send(ev discovery.Event) error {
	if !c.busy.CompareAndSwap(false, true) || c.closed.Load() {
		c.faults.Add(1)
		return nil
	}
	defer c.busy.Store(false)
	return c.set.Apply(ev)
}

// TestTheSinkHasOneCallerAtATime makes patience end, the inner source send and the
// context end at the same time, in real time, for the race detector.
func TestTheSinkHasOneCallerAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last.yaml")
	for i := range 200 {
		require.NoError(t, file.Write(path, []*worker.Worker{made(1)}))
		ctx, cancel := context.WithCancel(t.Context())
		src, err := New(Config{Path: path, Patience: time.Duration(1 + i*500), Inner: inner(func(ctx context.Context, sink discovery.Sink) error {
			for r := uint64(1); r < 20; r++ {
				if err := sink.Send(discovery.List{Epoch: "e", Revision: r, Entries: []discovery.Entry{entry(r), entry(r + 1)}}); err != nil {
					return err
				}
				if r == uint64(i%25) {
					cancel()
				}
			}
			<-ctx.Done()
			return nil
		})})
		require.NoError(t, err)
		if i%25 == 0 || i%25 >= 20 {
			go cancel()
		}
		var sink careful
		require.NoError(t, src.Run(ctx, &sink))
		sink.closed.Store(true)
		require.Zero(t, sink.faults.Load())
		requireFile(t, path, 19, 20)
		cancel()
	}
}

// TestWhatIsRememberedIsWhatAViewServes compares known with a view's merge, for sets in
// which ids and endpoints are claimed twice.
func TestWhatIsRememberedIsWhatAViewServes(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 500 {
		var es []discovery.Entry
		for i := range r.IntN(8) {
			w := made(1 + r.Uint64N(5))
			w.Endpoint = made(1 + r.Uint64N(5)).Endpoint
			if w.Fronted = r.IntN(4) == 0; !w.Fronted && r.IntN(2) == 0 {
				w.Endpoint, _ = worker.ParseEndpoint(fmt.Sprintf("10.0.0.1:%d", 8000+r.IntN(5)))
				w.DPSize, w.PortPerRank = 1+r.Uint32N(3), true
			}
			w.Draining = r.IntN(4) == 0
			es = append(es, discovery.Entry{Key: fmt.Sprintf("k/%d", i), Worker: w, Revision: 1 + r.Uint64N(4)})
		}
		var set discovery.Reducer
		require.NoError(t, set.Apply(discovery.List{Revision: 9, Entries: es}))
		v, stop := startView(t, inner(func(ctx context.Context, sink discovery.Sink) error {
			_ = sink.Send(discovery.List{Revision: 9, Entries: es})
			<-ctx.Done()
			return nil
		}))
		require.NoError(t, v.WaitReady(t.Context()))
		got := known(set.Entries())
		text, err := written("", got)
		require.NoError(t, err)
		served, err := record.MarshalList(v.Load().Workers())
		require.NoError(t, err)
		require.Equal(t, string(served), string(text))
		stop()
	}
}

func TestNoLoggerIsSilence(t *testing.T) {
	require.Equal(t, slog.DiscardHandler, Config{}.withDefaults().Logger.Handler())
}

// BenchmarkWrite measures one write; Marshal also reads its own output back.
func BenchmarkWrite(b *testing.B) {
	es := make([]discovery.Entry, 1000)
	for i := range es {
		es[i] = entry(uint64(i + 1))
		e, err := worker.ParseEndpoint(fmt.Sprintf("10.0.%d.%d:30000", i/200, i%200))
		require.NoError(b, err)
		es[i].Worker.Endpoint = e
	}
	w := newWriter(filepath.Join(b.TempDir(), "last.yaml"), "", slog.New(slog.DiscardHandler))
	for b.Loop() {
		require.True(b, w.write(es))
	}
}
