package activation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// store is an etcd of the mind: keys with versions, and now and then a stream
// that breaks, a history that is compacted away or a listing in between.
type store struct {
	t        *testing.T
	rng      *rand.Rand
	revision uint64
	keys     map[string]discovery.Entry
	nextID   worker.ID
	said     chan struct{} // one change was told, or kept back
	steps    int
	told     map[string]int
}

// slots are the pods: two decode sides with two each and two prefill pods. A
// pod that is rebuilt has a new id, and its old key may outlive that.
var slots = []struct {
	role worker.Role
	side string
}{{worker.Decode, "A"}, {worker.Decode, "A"}, {worker.Decode, "B"}, {worker.Decode, "B"}, {worker.Prefill, ""}, {worker.Prefill, ""}}

func (s *store) worker(slot int, whole bool) *worker.Worker {
	s.nextID++
	return make1(s.t, s.nextID, slots[slot].role, func(w *worker.Worker) {
		e, err := worker.ParseEndpoint("10.0.0.9:" + strconv.Itoa(8000+slot)) // a rebuilt pod may come back to its address
		require.NoError(s.t, err)
		w.Endpoint, w.Deployment = e, slots[slot].side
		if !whole {
			w.Bootstrap = worker.Bootstrap{}
		}
	})
}

// change makes one change of the store and returns it as a batch.
func (s *store) change() discovery.Batch {
	s.revision++
	b := discovery.Batch{Revision: s.revision}
	live := slices.Sorted(maps.Keys(s.keys))
	switch n := s.rng.IntN(10); {
	case n < 4 || len(live) == 0: // a pod is started or rebuilt; its old key may still be there
		w := s.worker(s.rng.IntN(len(slots)), s.rng.IntN(4) > 0)
		e := discovery.Entry{Key: "workers/" + w.ID.String(), Worker: w, Version: 1, Revision: s.revision}
		s.keys[e.Key] = e
		b.Ops = append(b.Ops, discovery.Put(e))
	case n < 8: // a lease runs out, or more than one at once
		for range 1 + s.rng.IntN(2) {
			if live = slices.Sorted(maps.Keys(s.keys)); len(live) == 0 {
				break
			}
			k := live[s.rng.IntN(len(live))]
			b.Ops = append(b.Ops, discovery.Delete(k, s.keys[k].Version))
			delete(s.keys, k)
		}
	default: // facts become known, or a drain begins
		k := live[s.rng.IntN(len(live))]
		e := s.keys[k]
		w := *e.Worker
		if w.Role == worker.Prefill {
			w.Bootstrap = worker.Bootstrap{Host: "10.0.0.9", Port: 8998}
		}
		w.Draining = s.rng.IntN(3) == 0
		e.Worker, e.Version, e.Revision = &w, e.Version+1, s.revision
		s.keys[k] = e
		b.Ops = append(b.Ops, discovery.Put(e))
	}
	return b
}

func (s *store) list() discovery.List {
	return discovery.List{Epoch: "one", Revision: s.revision, Entries: slices.Collect(maps.Values(s.keys))}
}

var errStream = errors.New("the stream broke")

func (s *store) Run(ctx context.Context, sink discovery.Sink) error {
	if err := sink.Send(s.list()); err != nil {
		return err
	}
	for ctx.Err() == nil && s.steps > 0 {
		s.steps--
		b := s.change()
		switch n := s.rng.IntN(40); {
		case n == 0: // lost on the way: the next write to a key, or the listing, shows it
			s.told["broke"]++
			return errStream
		case n == 1:
			s.told["listed"]++
			if err := sink.Send(s.list()); err != nil {
				return err
			}
		default:
			s.told["told"]++
			if err := sink.Send(b); err != nil {
				return err
			}
		}
		if s.rng.IntN(3) == 0 { // else changes pile up, and are seen as one
			s.said <- struct{}{}
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestFromTheStoreToTheBoardEveryChangeEndsInTheRightStanding drives the whole
// chain, source, reducer, view and board, with rebuilds, leases that outlive
// their pods, broken streams and listings.
func TestFromTheStoreToTheBoardEveryChangeEndsInTheRightStanding(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SEED=%d", seed)
	synctest.Test(t, func(t *testing.T) {
		s := &store{
			t: t, rng: rand.New(rand.NewPCG(seed, 2)), revision: 1, keys: map[string]discovery.Entry{}, steps: 3000,
			said: make(chan struct{}), told: map[string]int{},
		}
		view, err := discovery.New(discovery.Config{Sources: []discovery.Named{{Name: "store", Source: s}}})
		require.NoError(t, err)
		board := New()
		var faults []string
		states := map[prefill.State]int{}
		cancelled := view.Subscribe(func(_, now *worker.Snapshot, c discovery.Change) {
			board.Follow(now, c, time.Now())
			states[board.Load().Standing(worker.Key{Model: "m"}).State]++
			if f := misjudged(board.Load()); f != "" {
				faults = append(faults, f)
			}
		})
		defer cancelled()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = view.Run(ctx) }()
		for {
			synctest.Wait()
			select {
			case <-s.said:
			case <-time.After(time.Minute): // the source has said all it had to, and every pause is over
				cancel()
				<-done
				require.Zero(t, s.steps)
				require.Empty(t, faults)
				// What the source has last, the board has: every pod once, by its newest key, of those
				// that do not drain if there are any.
				newest := map[string]worker.ID{}
				for _, drains := range []bool{true, false} {
					for _, k := range slices.SortedFunc(maps.Keys(s.keys), func(a, b string) int { return int(s.keys[a].Revision) - int(s.keys[b].Revision) }) {
						if w := s.keys[k].Worker; w.Draining == drains {
							newest[w.Endpoint.String()] = w.ID
						}
					}
				}
				got := map[string]worker.ID{}
				for _, w := range board.Load().Workers() {
					got[w.Endpoint.String()] = w.ID
				}
				require.Equal(t, newest, got)
				for _, st := range []prefill.State{prefill.Absent, prefill.DecodeWaiting, prefill.PrefillPending, prefill.PrefillReady, prefill.Deactivated} {
					require.NotZero(t, states[st], "%s was never met: %v", st, fmt.Sprint(states))
				}
				require.NotZero(t, s.told["broke"])
				require.NotZero(t, s.told["listed"])
				return
			}
		}
	})
}
