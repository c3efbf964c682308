package discovery

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the model tests; 0 draws one")

func newRand(t *testing.T) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("replay with -seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// store is a slow model of a store: its keys with revisions and versions, and a log of
// all changes.
type store struct {
	revision uint64
	keys     map[string]Entry
	log      []Batch
	states   map[uint64]map[string]Entry // by revision
}

func (s *store) step(r *rand.Rand) {
	after := s.revision
	s.revision++
	b := Batch{Revision: s.revision, After: after}
	for range 1 + r.IntN(3) {
		key := string(rune('a' + r.IntN(5)))
		held, ok := s.keys[key]
		if ok && r.IntN(3) == 0 {
			b.Ops = append(b.Ops, Delete(key, held.Version))
			delete(s.keys, key)
			continue
		}
		id := worker.ID(1 + r.IntN(5))
		e := Entry{Key: key, Worker: newWorker(id, worker.Decode, s.revision), Revision: s.revision, Version: held.Version + 1}
		b.Ops = append(b.Ops, Put(e))
		s.keys[key] = e
	}
	s.log = append(s.log, b)
	s.states[s.revision] = maps.Clone(s.keys)
}

func (s *store) list() List {
	l := List{Revision: s.revision}
	for _, e := range s.keys {
		l.Entries = append(l.Entries, e)
	}
	return l
}

func (s *store) at(rev uint64) string {
	var best uint64
	for k := range s.states {
		if k <= rev && k > best {
			best = k
		}
	}
	return fmt.Sprint(s.states[best])
}

// TestAReducerThatIsWatchingIsNeverWrong feeds a reducer from a random store, over a
// stream that loses, repeats and reorders messages. While the reducer is watching, its
// set must be the store's at that revision. At other times its set must be that of the
// last revision at which it was watching.
func TestAReducerThatIsWatchingIsNeverWrong(t *testing.T) {
	rnd := newRand(t)
	refusals := 0
	for range 2000 {
		s := &store{keys: map[string]Entry{}, states: map[uint64]map[string]Entry{0: {}}}
		r := &Reducer{}
		next := 0 // index in the log of the next batch to deliver
		for range 40 {
			s.step(rnd)
			var ev Event
			switch x := rnd.IntN(20); {
			case r.State() != Watching || x == 0:
				ev, next = s.list(), len(s.log)
			case x == 1:
				next++ // lost
				continue
			case x == 2 && next > 0:
				ev = s.log[next-1] // repeated
			case x == 3:
				ev = Broken{Reason: "test"}
			case next < len(s.log):
				ev = s.log[next]
				next++
			default:
				continue
			}
			before := r.String()
			err := r.Apply(ev)
			if err != nil {
				refusals++
				require.ErrorIs(t, err, ErrResync)
				require.NotEqual(t, Watching, r.State(), "refused, yet watching; before: %s", before)
			}
			require.Equal(t, r.HasSet(), r.State() == Watching || r.State() == Stale)
			require.Equal(t, s.at(r.Revision()), entriesText(r), "after %T %+v; before: %s", ev, ev, before)
		}
	}
	require.Positive(t, refusals, "the stream was never at fault; the test shows nothing")
}

func entriesText(r *Reducer) string {
	m := map[string]Entry{}
	for _, e := range r.Entries() {
		m[e.Key] = e
	}
	return fmt.Sprint(m)
}

func TestAnEventOfAnotherTypeIsABug(t *testing.T) {
	r := &Reducer{}
	require.PanicsWithValue(t, "discovery: event of type <nil>: expected Begin, List, Batch, Batches or Broken", func() { _ = r.Apply(nil) })
}
