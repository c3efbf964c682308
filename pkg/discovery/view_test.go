package discovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// script is a source that the test controls: each Run gives its sink to the test, and
// ends when the test says so.
type script struct {
	runs  chan run
	ended time.Time

	mu    sync.Mutex
	pause []time.Duration // guarded by mu: the times between the end of a Run and the next Run
}

func (s *script) pauses() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pause)
}

type run struct {
	sink Sink
	end  chan error
}

func newScript() *script { return &script{runs: make(chan run)} }

func (s *script) Run(ctx context.Context, sink Sink) error {
	if !s.ended.IsZero() {
		s.mu.Lock()
		s.pause = append(s.pause, time.Since(s.ended))
		s.mu.Unlock()
	}
	defer func() { s.ended = time.Now() }()
	r := run{sink: sink, end: make(chan error)}
	select {
	case s.runs <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.end:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// started is a view that runs over scripts until the test ends.
type started struct {
	*View
	scripts     []*script
	transitions []string
	problems    []Problem
}

func start(t *testing.T, names ...string) *started {
	t.Helper()
	s := &started{}
	cfg := Config{Hooks: Hooks{
		Transition: func(x Transition) {
			text := fmt.Sprintf("%s: %s → %s revision %d", x.Source, x.From, x.To, x.Revision)
			if x.Cause != "" {
				text += ": " + x.Cause
			}
			s.transitions = append(s.transitions, text)
		},
		Problem: func(p Problem) { s.problems = append(s.problems, p) },
	}}
	for _, n := range names {
		sc := newScript()
		s.scripts = append(s.scripts, sc)
		cfg.Sources = append(cfg.Sources, Named{Name: n, Source: sc})
	}
	v, err := New(cfg)
	require.NoError(t, err)
	s.View = v
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return s
}

func listOf(rev uint64, ids ...worker.ID) List {
	l := List{Revision: rev}
	for _, id := range ids {
		l.Entries = append(l.Entries, Entry{Key: id.String(), Worker: newWorker(id, worker.Decode, 0)})
	}
	return l
}

func putOf(rev uint64, id worker.ID, variant uint64) Batch {
	return Batch{Revision: rev, Ops: []Op{Put(Entry{Key: id.String(), Worker: newWorker(id, worker.Decode, variant)})}}
}

func deleteOf(rev uint64, id worker.ID) Batch {
	return Batch{Revision: rev, Ops: []Op{Delete(id.String(), 0)}}
}

func ids(s *worker.Snapshot) []worker.ID {
	var out []worker.ID
	for _, w := range s.Workers() {
		out = append(out, w.ID)
	}
	return out
}

func TestNoRequestSeesAWorkerBeforeEverySourceHasSentItsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "file", "etcd")
		file, etcd := <-v.scripts[0].runs, <-v.scripts[1].runs
		require.False(t, v.Ready())
		require.NoError(t, file.sink.Send(listOf(1, 1)))
		require.False(t, v.Ready())
		require.Empty(t, ids(v.Load()), "half of the set is not a set")
		require.NoError(t, etcd.sink.Send(listOf(90, 2)))
		require.True(t, v.Ready())
		require.Equal(t, []worker.ID{1, 2}, ids(v.Load()))
		require.NoError(t, v.WaitReady(t.Context()))
	})
}

func TestAnEmptyFirstSetIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "file")
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(1)))
		require.True(t, v.Ready())
		require.Empty(t, ids(v.Load()))
	})
}

func TestWaitReadyNamesTheSourceThatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "file", "etcd")
		file, etcd := <-v.scripts[0].runs, <-v.scripts[1].runs
		require.NoError(t, file.sink.Send(listOf(1, 1)))
		require.NoError(t, etcd.sink.Send(Broken{Reason: "connection refused"}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := v.WaitReady(ctx)
		require.ErrorIs(t, err, ErrNotReady)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "source etcd is listing: connection refused")
		require.NotContains(t, err.Error(), "file")
	})
}

func TestALostSourceIsServedMarkedStaleUntilItIsListedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(10, 1, 2)))
		before := v.Load()
		r.end <- errors.New("stream ended")
		synctest.Wait()
		require.True(t, v.Load().Stale())
		require.True(t, v.Ready(), "an outage is no reason to refuse requests")
		require.Equal(t, []worker.ID{1, 2}, ids(v.Load()))

		r = <-v.scripts[0].runs // the view calls Run again without help
		require.True(t, v.Load().Stale())
		require.NoError(t, r.sink.Send(listOf(12, 1, 3)))
		require.False(t, v.Load().Stale())
		require.Equal(t, []worker.ID{1, 3}, ids(v.Load()))
		require.Same(t, before.Worker(1), v.Load().Worker(1), "a worker that did not change keeps its pointer")
		synctest.Wait()
		require.Equal(t, []string{
			"etcd: empty → listing revision 0",
			"etcd: listing → watching revision 10",
			"etcd: watching → stale revision 10: stream ended",
			"etcd: stale → watching revision 12",
		}, v.transitions)
		st := v.Status()
		require.Equal(t, "stream ended", st.Sources[0].LastError)
		require.EqualValues(t, 1, st.Sources[0].Losses)
	})
}

func TestARefusalKeepsItsOwnCauseWhenTheSourceReturnsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(10, 1)))
		err := r.sink.Send(deleteOf(11, 9))
		require.ErrorIs(t, err, ErrResync)
		r.end <- fmt.Errorf("etcd: %w", err)
		synctest.Wait()
		require.Equal(t, `refused: revision 11 after 10: key "9": delete of an absent key`, v.Status().Sources[0].LastError)
		require.Equal(t, Stale, v.Status().Sources[0].State)
	})
}

func TestASourceThatReturnsWithoutAnErrorIsLostToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(10, 1)))
		r.end <- nil
		synctest.Wait()
		require.True(t, v.Load().Stale())
		require.Equal(t, "the source stopped", v.Status().Sources[0].LastError)
	})
}

func TestOneStaleSourceMarksTheWholeViewAndDropsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "file", "etcd")
		file, etcd := <-v.scripts[0].runs, <-v.scripts[1].runs
		require.NoError(t, file.sink.Send(listOf(1, 1)))
		require.NoError(t, etcd.sink.Send(listOf(5, 2)))
		require.NoError(t, file.sink.Send(Broken{Reason: "line 3: bad"}))
		require.True(t, v.Load().Stale())
		require.NoError(t, etcd.sink.Send(putOf(6, 3, 0)))
		require.Equal(t, []worker.ID{1, 2, 3}, ids(v.Load()), "the healthy source goes on")
		require.True(t, v.Load().Stale())
	})
}

func TestPausesBetweenRunsGrowWithinTheirBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		for range 9 {
			r := <-v.scripts[0].runs
			r.end <- errors.New("connection refused")
		}
		synctest.Wait()
		most := 100 * time.Millisecond
		for i, p := range v.scripts[0].pauses() {
			require.GreaterOrEqual(t, p, most/2, "pause %d", i)
			require.LessOrEqual(t, p, most, "pause %d", i)
			most = min(2*most, 2*time.Second)
		}
		// After a long healthy run the next pause is short again.
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(1)))
		<-time.After(time.Minute)
		r.end <- errors.New("stream ended")
		<-v.scripts[0].runs
		pauses := v.scripts[0].pauses()
		require.LessOrEqual(t, pauses[len(pauses)-1], 100*time.Millisecond)
	})
}

func TestAListingThatRepeatsWhatIsKnownDisturbsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		calls := 0
		v.Subscribe(func(_, _ *worker.Snapshot, _ Change) { calls++ })
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(10, 1, 2)))
		synctest.Wait()
		before := v.Load()
		require.NoError(t, r.sink.Send(listOf(20, 1, 2)))
		require.NoError(t, r.sink.Send(Batch{Revision: 30}))
		synctest.Wait()
		require.Same(t, before, v.Load())
		require.Equal(t, 1, calls)
		require.EqualValues(t, 30, v.Status().Sources[0].Revision)
	})
}

func TestConflictsAndIneligibleWorkersAreReportedOnceAndShownWhileTheyLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "file", "etcd")
		file, etcd := <-v.scripts[0].runs, <-v.scripts[1].runs
		require.NoError(t, file.sink.Send(listOf(1, 7)))
		l := listOf(5, 7, 8)
		l.Entries[1].Worker.Role = worker.Prefill
		require.NoError(t, etcd.sink.Send(l))
		require.NoError(t, etcd.sink.Send(putOf(6, 9, 0)))
		synctest.Wait()
		want := []Problem{
			{Kind: ProblemConflict, Source: "etcd", Key: "7", Worker: 7, Text: `id 7 is already that of key "7" of source "file"`},
			{Kind: ProblemIneligible, Source: "etcd", Key: "8", Worker: 8, Text: Ineligible(l.Entries[1].Worker)},
		}
		require.Equal(t, want, v.problems)
		require.Equal(t, want, v.Status().Problems)
		require.Equal(t, []worker.ID{7, 8, 9}, ids(v.Load()), "kept in the set, to be seen")

		require.NoError(t, file.sink.Send(listOf(2)))
		synctest.Wait()
		require.Equal(t, want[1:], v.Status().Problems, "the conflict ended with the first source's claim")
		require.Equal(t, []worker.ID{7, 8, 9}, ids(v.Load()), "the later source's worker takes its place")
	})
}

func TestATransferDomainWithoutAValueIsAProblemAndNotAnAbsence(t *testing.T) {
	w := listOf(1, 7).Entries[0].Worker
	w.TopologyDomains = map[string]string{"zone": "a", "rack": ""}
	require.Empty(t, Ineligible(w))
	for domain, why := range map[string]string{"zone": "", "rack": `"rack" has no value`, "row": `"row" has no value`} {
		w.KVTransfer = worker.KVTransfer{Domain: domain, Enforcement: worker.Required}
		require.NoError(t, w.Validate())
		require.Equal(t, why == "", Ineligible(w) == "", domain)
		require.Contains(t, Ineligible(w), why)
		require.Empty(t, Unfit(w), "it may get a value yet: its model must not count as one without prefill")
	}
}

func TestConfigFaultsAreAllNamed(t *testing.T) {
	_, err := New(Config{})
	require.ErrorContains(t, err, "sources: expected at least one")
	_, err = New(Config{
		Sources:    []Named{{Name: "a", Source: newScript()}, {Name: "a", Source: newScript()}, {Name: "b"}},
		MinBackoff: time.Second, MaxBackoff: time.Millisecond,
	})
	require.ErrorContains(t, err, `sources[1]: name "a" is used twice`)
	require.ErrorContains(t, err, "sources[2]: expected a name and a source")
	require.ErrorContains(t, err, "backoff: 1s to 1ms")
}

func TestAViewRunsOnce(t *testing.T) {
	v, err := New(Config{Sources: []Named{{Name: "a", Source: newScript()}}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, v.Run(ctx))
	require.ErrorContains(t, v.Run(ctx), "run twice")
}

// Readers load while two sources write. Each snapshot that they see must be one that
// was published: the ids n and n+1000 always come and go together.
func TestReadersNeverSeeHalfABatch(t *testing.T) {
	v := start(t, "a", "b")
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for i, sc := range v.scripts {
		r := <-sc.runs
		writers.Go(func() {
			base := worker.ID(i * 100)
			if r.sink.Send(listOf(1)) != nil {
				t.Error("the first listing was refused")
			}
			for n := range uint64(300) {
				id := base + 1 + worker.ID(n%20)
				ops := []Op{}
				for _, x := range []worker.ID{id, id + 1000} {
					if n/20%2 == 0 {
						ops = append(ops, Put(Entry{Key: x.String(), Worker: newWorker(x, worker.Decode, n)}))
					} else {
						ops = append(ops, Delete(x.String(), 0))
					}
				}
				if err := r.sink.Send(Batch{Revision: n + 2, Ops: ops}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s := v.Load()
				for _, w := range s.Workers() {
					twin := w.ID + 1000
					if w.ID > 1000 {
						twin = w.ID - 1000
					}
					if s.Worker(twin) == nil {
						t.Errorf("worker %d without %d at revision %d", w.ID, twin, s.Revision())
						return
					}
				}
				_ = v.Status()
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
}

func TestStatesHaveNames(t *testing.T) {
	var names []string
	for s := Empty; s <= Stale+1; s++ {
		b, err := s.MarshalText()
		require.NoError(t, err)
		names = append(names, string(b))
	}
	require.Equal(t, "empty listing watching stale invalid", strings.Join(names, " "))
}
