package discovery

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// source is a source whose events a test sends.
type source func(ctx context.Context, sink Sink) error

func (s source) Run(ctx context.Context, sink Sink) error { return s(ctx, sink) }

// taker is the sink of a test.
type taker struct {
	mu     sync.Mutex
	set    Reducer
	refuse error
}

func (s *taker) Send(ev Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return s.refuse
	}
	return s.set.Apply(ev)
}

// leased makes some entries expire and some drain.
func leased(r *rand.Rand, e *Entry) {
	if e.Worker != nil && r.IntN(4) > 0 {
		e.Lease = time.Duration(1+r.IntN(3)) * time.Second
	}
	if r.IntN(5) == 0 {
		e.Worker.Draining = true
	}
}

// TestWhatIsSentOnIsTheSourcesSetAndWhoIsHeld: events of a random store, over a stream that
// loses and repeats some, while workers are asked and answer at random. The sink refuses
// nothing that the source itself would not have had refused.
func TestWhatIsSentOnIsTheSourcesSetAndWhoIsHeld(t *testing.T) {
	rnd := newRand(t)
	held, ended := 0, 0
	for range 150 {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			x := &Expiry{
				Ask: func(context.Context, *worker.Worker) Answer {
					mu.Lock()
					defer mu.Unlock()
					return Answer{Kind: AnswerKind(rnd.IntN(8) % 4), Models: []string{[...]string{"m", "m", "n"}[rnd.IntN(3)]}, Why: "test"}
				},
				Told: func(news []Expired) {
					for _, n := range news {
						if n.Over != "" {
							ended++
						}
					}
				},
			}
			to := &taker{}
			x.Inner = source(func(ctx context.Context, sink Sink) error {
				s := &store{keys: map[string]Entry{}, states: map[uint64]map[string]Entry{0: {}}}
				listed := true
				for range 60 {
					mu.Lock()
					s.step(rnd)
					b := &s.log[len(s.log)-1]
					for i := range b.Ops {
						if op := &b.Ops[i]; !op.Gone {
							leased(rnd, &op.Entry)
							s.keys[op.Key] = op.Entry
						}
					}
					n := rnd.IntN(12)
					mu.Unlock()
					var ev Event = Batches{*b}
					switch {
					case listed || n == 0:
						ev, listed = s.list(), false
					case n == 1:
						ev = Broken{Reason: "test"}
						listed = true
					case n == 2:
						continue // lost: the next one is refused
					case n == 3:
						ev = Batch{Revision: s.revision, Ops: b.Ops}
					}
					if err := sink.Send(ev); err != nil {
						require.ErrorIs(t, err, ErrResync)
						listed = true
					}
					held += requireSentOn(t, x, to)
					select {
					case <-ctx.Done():
						return nil
					case <-time.After(500 * time.Millisecond):
					}
				}
				return nil
			})
			require.NoError(t, x.Run(t.Context(), to))
		})
	}
	require.Positive(t, held)
	require.Positive(t, ended)
}

// requireSentOn checks that the sink has the source's set and those who are held. It returns
// how many these are.
func requireSentOn(t *testing.T, x *Expiry, to *taker) int {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.set.HasSet() {
		return 0
	}
	want := Reducer{}
	require.NoError(t, want.Apply(List{Revision: x.set.revision, Entries: x.held.with(&x.set)}))
	require.Len(t, to.set.entries, len(want.entries))
	for key, e := range to.set.entries {
		require.True(t, e.Worker.Equal(want.entries[key].Worker), "%s", key)
	}
	require.Equal(t, x.set.state, to.set.state)
	require.Equal(t, x.set.revision, to.set.revision)
	return len(x.held.held)
}

// TestManyWhoseRecordsExpireAreAskedABitAtATime: a hundred questions a second at most,
// however many there are and however long they take.
func TestManyWhoseRecordsExpireAreAskedABitAtATime(t *testing.T) {
	const n = 300
	for name, took := range map[string]time.Duration{"they answer at once": 0, "they hang": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				asked, under, most := 0, 0, 0
				x := &Expiry{Ask: func(ctx context.Context, _ *worker.Worker) Answer {
					mu.Lock()
					asked++
					under++
					most = max(most, under)
					mu.Unlock()
					select {
					case <-ctx.Done():
					case <-time.After(took):
					}
					mu.Lock()
					defer mu.Unlock()
					under--
					return Answer{Kind: Doubtful}
				}}
				x.Inner = source(func(ctx context.Context, sink Sink) error {
					var l List
					for i := range n {
						l.Entries = append(l.Entries, Entry{Key: strconv.Itoa(i), Worker: newWorker(worker.ID(i+1), worker.Decode, 0), Lease: time.Second})
					}
					l.Revision = 1
					require.NoError(t, sink.Send(l))
					require.NoError(t, sink.Send(List{Revision: 2}))
					<-ctx.Done()
					return nil
				})
				ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
				defer cancel()
				require.NoError(t, x.Run(ctx, &taker{}))
				require.Len(t, x.Expired(), n, "silence takes none")
				require.LessOrEqual(t, most, 100*int(took/time.Second)+1)
				require.GreaterOrEqual(t, asked, n)
				require.LessOrEqual(t, asked, n+25*100)
			})
		})
	}
}

// TestASinkThatRefusesWhatFollowsFromAnAnswerEndsTheRun: the view then runs the source again,
// and its listing has it.
func TestASinkThatRefusesWhatFollowsFromAnAnswerEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &taker{}
		refusal := errors.Join(ErrResync, errors.New("test"))
		var told []Expired
		x := &Expiry{
			Ask: func(context.Context, *worker.Worker) Answer {
				to.mu.Lock()
				defer to.mu.Unlock()
				to.refuse = refusal
				return Answer{Kind: Refused, Why: "test"}
			},
			Told: func(news []Expired) { told = append(told, news...) },
		}
		list := List{Revision: 1, Entries: []Entry{{Key: "a", Worker: newWorker(1, worker.Decode, 0), Lease: time.Second}}}
		first := true
		x.Inner = source(func(ctx context.Context, sink Sink) error {
			if first {
				first = false
				require.NoError(t, sink.Send(list))
			}
			require.NoError(t, sink.Send(List{Revision: 2}))
			<-ctx.Done()
			return nil
		})
		require.ErrorIs(t, x.Run(t.Context(), to), refusal)
		require.Len(t, to.set.Entries(), 1)
		to.refuse = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.NoError(t, x.Run(ctx, to))
		require.Empty(t, to.set.Entries())
		require.Len(t, told, 2, "that it has expired, and that it has left")
		require.Equal(t, "test", told[1].Over)
	})
}
