package activation

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// make1 returns a worker; models default to "m".
func make1(t testing.TB, id worker.ID, role worker.Role, change func(*worker.Worker)) *worker.Worker {
	t.Helper()
	e, err := worker.ParseEndpoint("10.0.0.1:" + strconv.Itoa(1000+int(id)))
	require.NoError(t, err)
	w := &worker.Worker{
		ID: id, Role: role, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"}, DPSize: 1, BlockSize: 16,
	}
	if role == worker.Prefill {
		w.Bootstrap = worker.Bootstrap{Host: "10.0.0.1", Port: 8998}
	}
	if change != nil {
		change(w)
	}
	return w
}

func set(t testing.TB, revision uint64, ws ...*worker.Worker) *worker.Snapshot {
	t.Helper()
	s, err := worker.NewSnapshot(revision, ws)
	require.NoError(t, err)
	return s
}

func TestHowLongAPairIsWaitedForIsBounded(t *testing.T) {
	b := New()
	key := worker.Key{Model: "m"}
	of := func(id worker.ID, role worker.Role, group string) *worker.Worker {
		return make1(t, id, role, func(w *worker.Worker) { w.Pair[worker.KVGroup] = group })
	}
	b.Follow(set(t, 1, of(1, worker.Prefill, "b"), of(2, worker.Decode, "a")), discovery.Change{}, noon)
	require.False(t, b.Load().ServedApart(key, noon), "there never was a pair")
	b.Follow(set(t, 2, of(1, worker.Prefill, "a"), of(2, worker.Decode, "a")), discovery.Change{}, noon)
	require.True(t, b.Load().ServedApart(key, noon.Add(24*time.Hour)), "there is one")
	b.Follow(set(t, 3, of(1, worker.Prefill, "b"), of(2, worker.Decode, "a")), discovery.Change{}, noon)
	b.Follow(set(t, 4, of(1, worker.Prefill, "c"), of(2, worker.Decode, "a")), discovery.Change{}, noon.Add(time.Minute))
	require.True(t, b.Load().ServedApart(key, noon.Add(rememberFor-1)))
	require.False(t, b.Load().ServedApart(key, noon.Add(rememberFor)))
	require.False(t, b.Load().ServedApart(worker.Key{Model: "other"}, noon))
}

func TestAWorldIsNotReadyBeforeTheFirstSet(t *testing.T) {
	b := New()
	require.False(t, b.Load().Ready())
	b.Follow(set(t, 1), discovery.Change{}, noon)
	require.True(t, b.Load().Ready(), "no worker at all is a set, too")
	<-b.Ready()
	b.Follow(set(t, 2), discovery.Change{}, noon)
}

func TestAPrefillWorkerWithoutItsFactsIsPendingAndADrainingOneStillReady(t *testing.T) {
	key := worker.Key{Model: "m"}
	b := New()
	b.Follow(set(t, 1, make1(t, 1, worker.Decode, nil),
		make1(t, 5, worker.Prefill, func(w *worker.Worker) { w.Bootstrap = worker.Bootstrap{} })), discovery.Change{}, noon)
	require.Equal(t, Standing{State: prefill.PrefillPending, Sides: 1}, b.Load().Standing(key))
	b.Follow(set(t, 2, make1(t, 1, worker.Decode, nil),
		make1(t, 5, worker.Prefill, func(w *worker.Worker) { w.Draining = true })), discovery.Change{}, noon)
	require.Equal(t, Standing{State: prefill.PrefillReady, Ready: 1, Sides: 1, Activated: true}, b.Load().Standing(key))
}

func TestEachKeyOfAWorkerStandsForItself(t *testing.T) {
	b := New()
	b.Follow(set(t, 1,
		make1(t, 1, worker.Decode, func(w *worker.Worker) { w.Models = []string{"m", "lora", "m"} }),
		make1(t, 2, worker.Decode, func(w *worker.Worker) { w.Namespace, w.Deployment = "n", "blue" }),
		make1(t, 5, worker.Prefill, nil)), discovery.Change{}, noon)
	got := map[string]prefill.State{}
	for _, k := range b.Load().Keys() {
		got[k.Namespace+"/"+k.Model] = b.Load().Standing(k).State
	}
	require.Equal(t, map[string]prefill.State{
		"/m": prefill.PrefillReady, "/lora": prefill.DecodeWaiting, "n/m": prefill.DecodeWaiting,
	}, got)
	require.Equal(t, Standing{}, b.Load().Standing(worker.Key{Model: "other"}))
}

func TestEveryTransitionIsToldOnceAndNoneForASetThatSaysNothingNew(t *testing.T) {
	b := New()
	first := set(t, 1, make1(t, 1, worker.Decode, nil))
	require.Len(t, b.Follow(first, discovery.Change{Joined: []worker.ID{1}}, noon), 1)
	require.Empty(t, b.Follow(first.WithStale(true), discovery.Change{}, noon))
	require.True(t, b.Load().Stale(), "the mark is seen all the same")
	changes := b.Follow(set(t, 2, make1(t, 1, worker.Decode, nil), make1(t, 5, worker.Prefill, nil)), discovery.Change{Joined: []worker.ID{5}}, noon)
	require.Len(t, changes, 1)
	require.Equal(t, worker.Key{Model: "m"}, changes[0].Key)
	require.Equal(t, prefill.Transition{
		From: prefill.DecodeWaiting, To: prefill.PrefillReady,
		Event: prefill.ActivationEvent{Kind: prefill.PrefillUp, Worker: 5}, Activated: []string{""},
	}, changes[0].Transition)
}

func TestAModelWhoseWorkersHaveAllLeftIsRememberedForAWhile(t *testing.T) {
	key := worker.Key{Model: "m"}
	b := New()
	b.Follow(set(t, 1, make1(t, 1, worker.Decode, nil)), discovery.Change{}, noon)
	require.False(t, b.Load().Departed(key, noon))
	b.Follow(set(t, 2), discovery.Change{Left: []worker.ID{1}}, noon)
	require.True(t, b.Load().Departed(key, noon.Add(rememberFor-1)))
	require.False(t, b.Load().Departed(key, noon.Add(rememberFor)))
	require.Equal(t, []worker.Key{key}, b.Load().DepartedKeys(noon))
	require.Empty(t, b.Load().DepartedKeys(noon.Add(rememberFor)))
	require.Empty(t, b.keys, "nothing is kept of it but that it was there")
	b.Follow(set(t, 3, make1(t, 11, worker.Decode, nil)), discovery.Change{Joined: []worker.ID{11}}, noon)
	require.False(t, b.Load().Departed(key, noon))
}

func TestAKeyRemembersForAWhileThatAWorkerServedItAlone(t *testing.T) {
	key, anyone := worker.Key{Model: "m"}, worker.Key{Model: worker.NoModel}
	able := func(w *worker.Worker) { w.AcceptsAggregated = true }
	b := New()
	at := noon
	follow := func(ws ...*worker.Worker) {
		at = at.Add(time.Minute)
		b.Follow(set(t, 1, ws...), discovery.Change{}, at)
	}
	follow(make1(t, 1, worker.Decode, nil), make1(t, 5, worker.Prefill, nil))
	require.False(t, b.Load().ServedAlone(key, at))
	follow(make1(t, 1, worker.Decode, able))
	require.True(t, b.Load().ServedAlone(key, at.Add(24*time.Hour)), "it is there")
	require.True(t, b.Load().ServedAlone(anyone, at))
	require.False(t, b.Load().ServedAlone(worker.Key{Model: "m", Namespace: "n"}, at))
	follow(make1(t, 1, worker.Decode, nil))
	follow(make1(t, 1, worker.Decode, nil))
	require.True(t, b.Load().ServedAlone(key, at.Add(rememberFor-time.Minute-1)))
	require.False(t, b.Load().ServedAlone(key, at.Add(rememberFor-time.Minute)))
	follow(make1(t, 2, worker.Aggregated, nil))
	follow()
	require.True(t, b.Load().ServedAlone(key, at), "the model has no worker at all")
	at = at.Add(rememberFor)
	follow(make1(t, 1, worker.Decode, nil))
	require.Empty(t, b.alone, "nothing is kept of it")
	follow(make1(t, 2, worker.Aggregated, func(w *worker.Worker) { w.Draining = true }))
	require.True(t, b.Load().ServedAlone(key, at), "its successor may come")
}

func TestAModelThatItsWorkersHaveUnloadedIsForgotten(t *testing.T) {
	b := New()
	two := func(w *worker.Worker) { w.Models = []string{"m", "lora"} }
	b.Follow(set(t, 1, make1(t, 1, worker.Decode, two), make1(t, 2, worker.Decode, two)), discovery.Change{}, noon)
	b.Follow(set(t, 2, make1(t, 1, worker.Decode, nil)), discovery.Change{Left: []worker.ID{2}, Changed: []worker.ID{1}}, noon)
	require.False(t, b.Load().Departed(worker.Key{Model: "lora"}, noon))
	require.Empty(t, b.Load().DepartedKeys(noon))
	// One of the same name in another namespace is another model.
	b.Follow(set(t, 3, make1(t, 1, worker.Decode, nil), make1(t, 3, worker.Decode, func(w *worker.Worker) { w.Namespace = "n" })), discovery.Change{}, noon)
	b.Follow(set(t, 4, make1(t, 1, worker.Decode, nil)), discovery.Change{Left: []worker.ID{3}}, noon)
	require.Equal(t, []worker.Key{{Model: "m", Namespace: "n"}}, b.Load().DepartedKeys(noon))
}

func TestAWorkerThatCanNeverHandOverIsNotWaitedFor(t *testing.T) {
	fronted := func(w *worker.Worker) { w.Fronted = true }
	b := New()
	b.Follow(set(t, 1, make1(t, 1, worker.Decode, fronted), make1(t, 6, worker.Prefill, fronted)), discovery.Change{}, noon)
	require.Equal(t, Standing{}, b.Load().Standing(worker.Key{Model: "m"}))
	b.Follow(set(t, 2, make1(t, 1, worker.Decode, fronted), make1(t, 7, worker.Prefill, nil)), discovery.Change{}, noon)
	require.Equal(t, Standing{State: prefill.PrefillReady, Ready: 1}, b.Load().Standing(worker.Key{Model: "m"}))
}

func TestAPrefillWorkerThatNeedsNoRendezvousIsReadyAtOnce(t *testing.T) {
	vllm := func(w *worker.Worker) { w.Engine, w.Bootstrap = worker.VLLM, worker.Bootstrap{} }
	b := New()
	b.Follow(set(t, 1, make1(t, 1, worker.Decode, vllm), make1(t, 5, worker.Prefill, vllm)), discovery.Change{}, noon)
	require.Equal(t, Standing{State: prefill.PrefillReady, Ready: 1, Sides: 1, Activated: true}, b.Load().Standing(worker.Key{Model: "m"}))
}

func TestWhoWaitsForANewerWorldFindsIt(t *testing.T) {
	for revision := range uint64(200) {
		b := New()
		woken := make(chan bool)
		go func() {
			<-b.Ready()
			woken <- b.Load().Ready()
		}()
		old := b.Load()
		go func() {
			<-old.Replaced()
			woken <- b.Load() != old
		}()
		b.Follow(set(t, revision), discovery.Change{}, noon)
		require.True(t, <-woken)
		require.True(t, <-woken)
	}
}

func TestMadeUpModelsAreNotRememberedWithoutBound(t *testing.T) {
	b := New()
	for i := range 3 * maxDeparted {
		w := make1(t, worker.ID(1+i%2), worker.Decode, func(w *worker.Worker) { w.Models, w.AcceptsAggregated = []string{"m" + strconv.Itoa(i)}, true })
		b.Follow(set(t, uint64(i), w), discovery.Change{}, noon)
	}
	require.LessOrEqual(t, len(b.Load().departed), maxDeparted)
	require.LessOrEqual(t, len(b.Load().alone), maxDeparted+1)
}

// TestReadersNeverSeeAStandingThatIsNotTheirWorkers plays random sets while
// readers judge each world that they load; run it with -race.
func TestReadersNeverSeeAStandingThatIsNotTheirWorkers(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	b := New()
	b.Follow(set(t, 1), discovery.Change{}, noon)
	done := make(chan struct{})
	faults := make(chan string, 4)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				_ = b.Load().Departed(worker.Key{Model: "m"}, noon)
				if fault := misjudged(b.Load()); fault != "" {
					faults <- fault
					return
				}
			}
		})
	}
	for revision := range uint64(3000) {
		var ws []*worker.Worker
		var left []worker.ID
		for _, id := range []worker.ID{1, 2, 5, 6} {
			role := worker.Decode
			if id >= 5 {
				role = worker.Prefill
			}
			switch rng.IntN(4) {
			case 0:
			case 1:
				ws = append(ws, make1(t, id, role, func(w *worker.Worker) { w.Bootstrap = worker.Bootstrap{} }))
			default:
				ws = append(ws, make1(t, id, role, nil))
			}
			if rng.IntN(3) == 0 {
				left = append(left, id)
			}
		}
		b.Follow(set(t, revision+2, ws...), discovery.Change{Left: left}, noon)
	}
	close(done)
	readers.Wait()
	select {
	case f := <-faults:
		t.Fatal(f)
	default:
	}
}

// misjudged compares the standing with the workers of the same world.
func misjudged(w *World) string {
	is := func(role worker.Role, pending bool) bool {
		return slices.ContainsFunc(w.Workers(), func(x *worker.Worker) bool {
			return x.Role == role && (pending || role == worker.Decode || !x.Bootstrap.IsZero())
		})
	}
	st := w.Standing(worker.Key{Model: "m"})
	ready, known, decode := is(worker.Prefill, false), is(worker.Prefill, true), is(worker.Decode, false)
	switch {
	case ready != (st.State == prefill.PrefillReady), ready != (st.Ready > 0), st.Activated != (ready && decode),
		!ready && known != (st.State == prefill.PrefillPending),
		!known && decode != (st.State == prefill.DecodeWaiting || st.State == prefill.Deactivated):
		return fmt.Sprintf("revision %d: ready %t known %t decode %t: standing %+v", w.Revision(), ready, known, decode, st)
	}
	return ""
}
