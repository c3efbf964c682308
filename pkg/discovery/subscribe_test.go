package discovery

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// told records the calls of a subscriber, and can block one.
type told struct {
	calls []string
	hold  chan struct{} // nil: calls return at once
}

func (d *told) hear(old, now *worker.Snapshot, c Change) {
	d.calls = append(d.calls, fmt.Sprintf("%v→%v joined %v left %v changed %v stale %v",
		ids(old), ids(now), c.Joined, c.Left, c.Changed, now.Stale()))
	if d.hold != nil {
		<-d.hold
	}
}

func TestASubscriberHearsTheFirstSetThenEveryChangeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		var d told
		v.Subscribe(d.hear)
		r := <-v.scripts[0].runs
		for _, ev := range []Event{listOf(1, 1, 2), putOf(2, 3, 0), putOf(3, 3, 9), deleteOf(4, 1), Broken{Reason: "x"}, listOf(4, 2, 3)} {
			_ = r.sink.Send(ev)
			synctest.Wait()
		}
		require.Equal(t, []string{
			"[]→[1 2] joined [1 2] left [] changed [] stale false",
			"[1 2]→[1 2 3] joined [3] left [] changed [] stale false",
			"[1 2 3]→[1 2 3] joined [] left [] changed [3] stale false",
			"[1 2 3]→[2 3] joined [] left [1] changed [] stale false",
			"[2 3]→[2 3] joined [] left [] changed [] stale true",
			"[2 3]→[2 3] joined [] left [] changed [3] stale false",
		}, d.calls)
	})
}

func TestALateSubscriberHearsTheSetAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(1, 1)))
		require.NoError(t, r.sink.Send(putOf(2, 2, 0)))
		synctest.Wait()
		var d told
		v.Subscribe(d.hear)
		synctest.Wait()
		require.Equal(t, []string{"[]→[1 2] joined [1 2] left [] changed [] stale false"}, d.calls)
	})
}

func TestABurstComesAsOneCallAndReadersDoNotWaitForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		d := told{hold: make(chan struct{})}
		v.Subscribe(d.hear)
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(1, 1)))
		synctest.Wait() // the subscriber blocks in its first call
		for rev := uint64(2); rev <= 50; rev++ {
			require.NoError(t, r.sink.Send(putOf(rev, worker.ID(rev), 0)))
			require.NotNil(t, v.Load().Worker(worker.ID(rev)), "the view does not wait for subscribers")
		}
		close(d.hold)
		synctest.Wait()
		require.Len(t, d.calls, 2)
	})
}

func TestAWorkerThatWasAwayDuringABurstHasLeftAndJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		d := told{hold: make(chan struct{})}
		v.Subscribe(d.hear)
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(1, 1, 2, 3)))
		synctest.Wait()
		for _, ev := range []Event{
			deleteOf(2, 1), putOf(3, 1, 0), // away, and back unchanged
			deleteOf(4, 2), putOf(5, 2, 9), // away, and back changed
			putOf(6, 4, 0), deleteOf(7, 4), // came and went: no subscriber needs to know
		} {
			require.NoError(t, r.sink.Send(ev))
		}
		close(d.hold)
		synctest.Wait()
		require.Equal(t, "[1 2 3]→[1 2 3] joined [1 2] left [1 2] changed [] stale false", d.calls[1])
	})
}

// The same changes as one event: it is published in as few steps as show each absence.
func TestBatchesArePublishedTogetherUnlessAWorkerComesBackWithinThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		d := told{hold: make(chan struct{})}
		v.Subscribe(d.hear)
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(1, 1, 2, 3)))
		synctest.Wait()
		before := v.Load().Revision()
		require.NoError(t, r.sink.Send(Batches{
			deleteOf(2, 1), putOf(3, 1, 0), // away, and back unchanged
			deleteOf(4, 2), putOf(5, 2, 9), // away, and back changed
			putOf(6, 4, 0), deleteOf(7, 4), // came and went
		}))
		require.EqualValues(t, 4, v.Load().Revision()-before, "each of the three is seen to be away")

		before = v.Load().Revision()
		var many Batches
		for id := range worker.ID(1000) {
			many = append(many, putOf(uint64(8+id), 100+id, 0))
		}
		require.NoError(t, r.sink.Send(many))
		require.EqualValues(t, 1, v.Load().Revision()-before)
		require.Len(t, v.Load().Workers(), 1003)

		require.ErrorIs(t, r.sink.Send(Batches{deleteOf(2000, 100), deleteOf(1999, 101), deleteOf(2001, 102)}), ErrResync)
		require.Len(t, v.Load().Workers(), 1002, "what came before the one that is refused holds")
		require.True(t, v.Load().Stale())
		close(d.hold)
		synctest.Wait()
		require.Contains(t, d.calls[1], "left [1 2] changed []", "who was away")
	})
}

// A worker is also away while another worker has its address for a moment.
func TestBatchesTellOfAWorkerThatAnotherStoodInFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		var d told
		v.Subscribe(d.hear)
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(1, 1)))
		synctest.Wait()
		other := *v.Load().Worker(1)
		other.ID = 9
		require.NoError(t, r.sink.Send(Batches{
			{Revision: 2, Ops: []Op{Put(Entry{Key: "9", Worker: &other})}}, // it was written last, so it has the address
			deleteOf(3, 9),
		}))
		synctest.Wait()
		require.Equal(t, "[1]→[1] joined [1] left [1] changed [] stale false", d.calls[1])
	})
}

func TestACancelledSubscriberHearsNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		var d, other told
		cancel := v.Subscribe(d.hear)
		v.Subscribe(other.hear)
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(1, 1)))
		synctest.Wait()
		cancel()
		cancel()
		require.NoError(t, r.sink.Send(putOf(2, 2, 0)))
		synctest.Wait()
		require.Len(t, d.calls, 1)
		require.Len(t, other.calls, 2)
	})
}

// A call that is on its way when its subscriber is cancelled goes on. Whoever waits for its
// end hears of nothing afterwards.
func TestTheEndOfACancelledSubscribersCallCanBeWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		d := told{hold: make(chan struct{})}
		cancel := v.Subscribe(d.hear)
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(1, 1)))
		synctest.Wait() // the subscriber is in its first call
		over := cancel()
		require.Equal(t, over, cancel(), "the same, however often it is called")
		require.NoError(t, r.sink.Send(putOf(2, 2, 0)))
		synctest.Wait()
		require.False(t, closed(over), "the call is on its way")
		close(d.hold)
		<-over
		synctest.Wait()
		require.Len(t, d.calls, 1)
		require.True(t, closed(cancel()))

		var idle told
		require.True(t, closed(v.Subscribe(idle.hear)()), "there was no call yet")
		synctest.Wait()
		require.Empty(t, idle.calls)
	})
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestASubscriberMayCancelFromItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		calls := 0
		var cancel func() <-chan struct{}
		cancel = v.Subscribe(func(_, _ *worker.Snapshot, _ Change) {
			calls++
			require.False(t, closed(cancel()))
		})
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(1, 1)))
		synctest.Wait()
		require.NoError(t, r.sink.Send(putOf(2, 2, 0)))
		synctest.Wait()
		require.Equal(t, 1, calls)
		require.True(t, closed(cancel()))
	})
}

func TestASubscriberMayReadAndSubscribeFromItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		var inner told
		v.Subscribe(func(_, now *worker.Snapshot, _ Change) {
			require.Same(t, now, v.Load())
			require.True(t, v.Status().Ready)
			v.Subscribe(inner.hear)
		})
		r := <-v.scripts[0].runs
		require.NoError(t, r.sink.Send(listOf(1, 1)))
		synctest.Wait()
		require.Len(t, inner.calls, 1)
	})
}

// TestWhoIsRegisteredAnewAtItsAddressHasMoved: unless somebody withdrew it, or nobody was at
// its address in between.
func TestWhoIsRegisteredAnewAtItsAddressHasMoved(t *testing.T) {
	set := func(rev uint64, ws ...*worker.Worker) List {
		l := List{Revision: rev}
		for _, w := range ws {
			l.Entries = append(l.Entries, Entry{Key: w.ID.String(), Worker: w})
		}
		return l
	}
	at := func(id worker.ID, role worker.Role, change func(*worker.Worker)) *worker.Worker {
		w := newWorker(id, role, 0)
		w.Endpoint = newWorker(1, role, 0).Endpoint
		if change != nil {
			change(w)
		}
		return w
	}
	draining := func(w *worker.Worker) { w.Draining = true }
	expired := func(w *worker.Worker) { w.Draining, w.Expired = true, true }
	for name, c := range map[string]struct {
		events []Event
		moved  []worker.ID
	}{
		"registered anew": {[]Event{set(2, at(2, worker.Decode, nil))}, []worker.ID{1}},
		"expired":         {[]Event{set(2, at(1, worker.Decode, expired)), set(3, at(2, worker.Decode, nil))}, []worker.ID{1}},
		"moved twice":     {[]Event{set(2, at(2, worker.Decode, nil)), set(3, at(3, worker.Decode, nil))}, []worker.ID{1}},
		"withdrawn":       {[]Event{set(2, at(1, worker.Decode, draining)), set(3, at(2, worker.Decode, nil))}, nil},
		"away between":    {[]Event{set(2), set(3, at(2, worker.Decode, nil))}, nil},
		"another role":    {[]Event{set(2, at(2, worker.Prefill, nil))}, nil},
		"away":            {[]Event{set(2)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := start(t, "etcd")
				r := <-v.scripts[0].runs
				require.NoError(t, r.sink.Send(set(1, at(1, worker.Decode, nil))))
				synctest.Wait()
				goOn := make(chan struct{})
				var moved []worker.ID
				v.Subscribe(func(_, _ *worker.Snapshot, c Change) {
					<-goOn // the events come as one change
					require.Subset(t, c.Left, c.Moved)
					moved = append(moved, c.Moved...)
				})
				synctest.Wait()
				for _, ev := range c.events {
					require.NoError(t, r.sink.Send(ev))
				}
				close(goOn)
				synctest.Wait()
				require.Equal(t, c.moved, moved)
			})
		})
	}
}
