package kvevents

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// reconciled is a subscriber that does not run: the test decides when it takes an update.
func reconciled(t *testing.T, cfg Config) (sub *Subscriber, tell func(...*worker.Worker), see func()) {
	t.Helper()
	sub, err := NewSubscriber(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	tell = func(ws ...*worker.Worker) {
		snap, err := worker.NewSnapshot(1, ws)
		require.NoError(t, err)
		sub.Update(snap)
	}
	return sub, tell, func() { sub.reconcile(ctx, &wg) }
}

// Both changes may be taken at once, and another goroutine may have detached the rank in
// between.
func TestAWorkerThatWasAwayForAMomentIsFollowedAnew(t *testing.T) {
	for name, detach := range map[string]bool{"the index has it still": false, "the index has it no more": true} {
		t.Run(name, func(t *testing.T) {
			index := newTree(t)
			_, tell, see := reconciled(t, Config{Index: index})
			w, stays := testWorker(t, 1, worker.KVEvents{}), testWorker(t, 2, worker.KVEvents{})
			tell(w, stays)
			see()
			for _, r := range []worker.Rank{one, {ID: 2}} {
				require.NoError(t, index.Store(r, kvindex.Stored{Blocks: []kvindex.Block{{Engine: 1, Local: 1}}}))
			}
			tell(stays)
			if detach {
				index.Detach(one)
			}
			tell(w, stays)
			see()
			st, ok := index.Stats(one)
			require.True(t, ok)
			require.Zero(t, st.Blocks, "it is another life")
			require.NoError(t, index.Store(one, kvindex.Stored{Blocks: []kvindex.Block{{Engine: 1, Local: 1}}}))
			st, _ = index.Stats(worker.Rank{ID: 2})
			require.Equal(t, 1, st.Blocks)
			tell(w, stays)
			see()
			st, _ = index.Stats(one)
			require.Equal(t, 1, st.Blocks, "once")
			moved := testWorker(t, 1, worker.KVEvents{})
			moved.Endpoint = testWorker(t, 3, worker.KVEvents{}).Endpoint
			tell(moved, stays)
			see()
			st, _ = index.Stats(one)
			require.Zero(t, st.Blocks, "another endpoint is another life, too")
		})
	}
}

// A caller that stores states from the hooks would otherwise keep the last one for ever.
func TestAWorkerThatPublishesNoMoreIsInNoState(t *testing.T) {
	var mu sync.Mutex
	states := map[worker.Rank]State{}
	_, tell, see := reconciled(t, Config{
		Index: newTree(t), Dial: nowhere,
		Hooks: Hooks{State: func(r worker.Rank, s State) { mu.Lock(); states[r] = s; mu.Unlock() }},
	})
	is := func(s State) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); got, told := states[one]; return told && got == s }
	}
	tell(testWorker(t, 1, worker.KVEvents{Host: "127.0.0.1", Port: 1}))
	see()
	require.Eventually(t, is(StateConnecting), 20*time.Second, time.Millisecond)
	tell(testWorker(t, 1, worker.KVEvents{}))
	see()
	require.True(t, is(StateNone)())
}

func TestARankThatIsAboutToLeaveDoesNotSpoilTheDump(t *testing.T) {
	p := newWirePublisher(t, false, 100, 400)
	p.publish(newEngineCache(rand.New(rand.NewPCG(7, 7)), 200, false).message(20))
	second := wireWorker(t, p.source())
	second.ID = 2
	second.Endpoint = testWorker(t, 2, p.source()).Endpoint
	l := begin(t, nil, nil, wireWorker(t, p.source()), second)
	l.heard(0)
	two := worker.Rank{ID: 2}
	require.Eventually(t, func() bool { return l.status(two).Seen }, 20*time.Second, time.Millisecond)
	l.tree.Detach(two)
	d, err := kvindex.ReadDump(bytes.NewReader(l.dump()))
	require.NoError(t, err)
	require.Len(t, d.Ranks(), 1)
	require.Equal(t, one, d.Ranks()[0].Rank)
}

// full is an index that has no room.
type full struct{ *kvindex.Tree }

func (full) Store(worker.Rank, kvindex.Stored) error { return kvindex.ErrNoRoom }

func TestBlocksOfTheDumpThatFindNoRoomAreMissing(t *testing.T) {
	p := newWirePublisher(t, false, 100, 400)
	w := wireWorker(t, p.source())
	p.publish(newEngineCache(rand.New(rand.NewPCG(7, 7)), 200, false).message(20))
	first := begin(t, nil, nil, w)
	first.heard(0)
	dump := first.end()
	gate := make(chan struct{})
	second := begin(t, dump, func(c *Config) {
		c.Index = full{c.Index.(*kvindex.Tree)}
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			<-gate
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	}, w)
	require.Eventually(t, func() bool { return second.status(one).Kept > 0 }, 20*time.Second, time.Millisecond)
	second.sub.mu.Lock()
	second.sub.ranks[one].feed.refuse(BadFrames, 1)
	second.sub.mu.Unlock()
	close(gate)
	second.heard(0)
	s := second.status(one)
	require.Zero(t, s.Blocks)
	require.EqualValues(t, 1, s.Missing[NoRoom])
	require.EqualValues(t, 1, s.Missing[BadFrames], "what was refused before is not forgotten")
}

func TestTheDumpGoesWithTheLastRankThatNeedsIt(t *testing.T) {
	p := newWirePublisher(t, false, 100, 400)
	w := wireWorker(t, p.source())
	p.publish(newEngineCache(rand.New(rand.NewPCG(7, 7)), 200, false).message(20))
	first := begin(t, nil, nil, w)
	first.heard(0)
	second := begin(t, first.end(), nil, w)
	second.heard(0)
	require.EqualValues(t, 1, second.restored.Load())
	require.Eventually(t, func() bool { runtime.GC(); return second.given.Value() == nil }, 20*time.Second, time.Millisecond)
}

// The replay hangs past the deadline. The blocks must not be kept for as long as the
// worker is away.
func TestWhatWasBeingJudgedAtItsDeadlineIsForgottenWithTheConnection(t *testing.T) {
	p := newWirePublisher(t, false, 100, 400)
	p.publish(newEngineCache(rand.New(rand.NewPCG(7, 7)), 200, false).message(20))
	w := wireWorker(t, p.source())
	first := begin(t, nil, nil, w)
	first.heard(0)
	dump := first.end()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	router := p.router.Addr().String()
	second := begin(t, dump, func(c *Config) {
		c.Keep = time.Since(oldest(t, dump)) + 300*time.Millisecond
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == router {
				addr = silent.Addr().String()
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
		c.Timeout = time.Minute
	}, w)
	f := func() *follower { second.sub.mu.Lock(); defer second.sub.mu.Unlock(); return second.sub.ranks[one] }
	require.Eventually(t, func() bool { return second.status(one).State == StateReplaying }, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() (expired bool) {
		f().inTurn(func() { expired = f().feed.kept.expired() })
		return expired
	}, 20*time.Second, time.Millisecond)
	require.Positive(t, second.status(one).Kept)
	_ = p.pub.Close()
	p.cut()
	require.Eventually(t, func() bool { return second.status(one).Kept == 0 }, 20*time.Second, time.Millisecond)
}

func TestWhatAppearsAfterItsDeadlineIsNotGivenWhatWasKept(t *testing.T) {
	p := newWirePublisher(t, false, 100, 400)
	p.publish(newEngineCache(rand.New(rand.NewPCG(7, 7)), 200, false).message(20))
	first := begin(t, nil, nil, wireWorker(t, p.source()))
	first.heard(0)
	d, err := kvindex.ReadDump(bytes.NewReader(first.end()))
	require.NoError(t, err)
	for name, late := range map[string]bool{"in time": false, "late": true} {
		t.Run(name, func(t *testing.T) {
			sub, tell, see := reconciled(t, Config{Index: newTree(t), Dial: nowhere})
			n, err := sub.Resume(d)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			if late {
				sub.saved[one].deadline = time.Now()
			}
			tell(wireWorker(t, p.source()))
			see()
			require.Equal(t, late, sub.Status()[0].Kept == 0)
		})
	}
}

func TestWhatAPlaneToldIsNotGivenToAPublisherThatDials(t *testing.T) {
	w := testWorker(t, 1, worker.KVEvents{})
	h := newHand()
	first := begin(t, nil, func(c *Config) { c.Channels = []Channel{h} }, w)
	sink := <-h.sink
	require.Eventually(t, func() bool { return len(first.sub.Status()) == 1 }, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		sink.Envelope(envelope(t, 7, 0, "kv-events", routed(0, planeStored(nil, 1), nil)))
		return first.status(one).Seen
	}, 20*time.Second, time.Millisecond)
	second := begin(t, first.end(), func(c *Config) { c.Bind = []string{"127.0.0.1:0"} }, w)
	require.Eventually(t, func() bool { return len(second.sub.Status()) == 1 }, 20*time.Second, time.Millisecond)
	require.Zero(t, second.status(one).Kept)
}

// The first event may come before the rank is published.
func TestWhoeverIsToldOfARanksFirstEventFindsThatItTells(t *testing.T) {
	var sub *Subscriber
	var told []bool
	sub, _, _ = reconciled(t, Config{
		Index: newTree(t), Channels: []Channel{newHand()},
		Hooks: Hooks{State: func(r worker.Rank, _ State) { told = append(told, sub.Tells(r)) }},
	})
	w := testWorker(t, 1, worker.KVEvents{})
	snap, err := worker.NewSnapshot(1, []*worker.Worker{w})
	require.NoError(t, err)
	sub.cfg.Index.Attach(one)
	sub.follow(t.Context(), one, sourceOf(w, 0), new(sync.WaitGroup))
	sub.plane.intakes[0].Envelope(envelope(t, 7, 0, "kv-events", routed(0, planeStored(nil, 1), nil)))
	require.Equal(t, []bool{false}, told)
	sub.publishNames(snap)
	require.Equal(t, []bool{false, true}, told)
	sub.publishNames(snap)
	require.Len(t, told, 2, "once")
}
