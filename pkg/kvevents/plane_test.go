package kvevents

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// hand is a channel whose envelopes the test hands over.
type hand struct{ sink chan Sink }

func newHand() *hand { return &hand{sink: make(chan Sink, 1)} }

func (h *hand) Name() string { return "hand" }

func (h *hand) Run(ctx context.Context, sink Sink) {
	sink.Up()
	h.sink <- sink
	<-ctx.Done()
}

// planeRig is a subscriber that gets its events from such channels.
func planeRig(t *testing.T, channels ...Channel) (*rig, []Sink) {
	r := newRig(t, func(c *Config) { c.Channels = channels })
	var sinks []Sink
	for _, c := range channels {
		sinks = append(sinks, <-c.(*hand).sink)
	}
	return r, sinks
}

// planeHolds reports whether the index has exactly the root blocks of want.
func (r *rig) planeHolds(rank worker.Rank, want ...uint64) bool {
	st, ok := r.index.Stats(rank)
	if !ok || st.Blocks != len(want) {
		return false
	}
	slot, _ := r.index.Slot(rank)
	var dst kvindex.Overlap
	for _, b := range want {
		r.index.Overlap([]kvindex.LocalHash{kvindex.LocalHash(1000 + b)}, &dst)
		if dst.At(slot) != 1 {
			return false
		}
	}
	return true
}

// attached waits until the plane takes events of these ranks and of no others. Ranks with
// an address of their own are not among them.
func (r *rig) attached(ranks ...worker.Rank) {
	r.t.Helper()
	r.eventually("attached", func() bool {
		told := r.sub.told.Load()
		if told == nil {
			return false
		}
		others := 0
		for _, f := range *told {
			if f.named {
				others++
			}
		}
		return len(*told)-others == len(ranks) && !slices.ContainsFunc(ranks, func(k worker.Rank) bool {
			f := (*told)[k]
			if f == nil || r.sub.plane == nil {
				return f == nil
			}
			pr, _ := r.sub.plane.rank(k)
			return pr == nil || f != &pr.feed
		})
	})
}

func TestThePlaneFeedsTheRanksThatItsEventsName(t *testing.T) {
	r, sinks := planeRig(t, newHand())
	two := worker.Rank{ID: 2}
	r.follow(worker.KVEvents{}, worker.KVEvents{})
	r.attached(one, two)
	require.False(t, r.sub.Tells(one))
	require.Equal(t, StateNone, r.status(one).State)
	sinks[0].Envelope(envelope(t, 7, 0, "kv-events",
		routed(1, planeStored(nil, 5), nil), routed(2, planeStored(nil, 6), nil),
		routed(1, planeStored(nil, 8), event{"worker_id": 2}), routed(3, planeStored(5, 7), nil)))
	require.True(t, r.planeHolds(two, 8))
	require.Equal(t, 3, r.status(one).Blocks)
	sinks[0].Envelope(envelope(t, 7, 1, "kv-events", routed(4, planeRemoved(7), nil)))
	require.True(t, r.planeHolds(one, 5, 6))
	s := r.status(one)
	require.Equal(t, []any{StateConnected, "hand", uint64(4), uint64(4), true}, []any{s.State, s.Via, s.LastSeq, s.Events, s.Seen})
	require.True(t, r.sub.Tells(one))
	require.False(t, r.sub.Tells(worker.Rank{ID: 9}))
	require.NoError(t, r.index.Check())
}

func TestThePlaneResetsARankThatMissedEvents(t *testing.T) {
	r, sinks := planeRig(t, newHand())
	r.follow(worker.KVEvents{})
	r.attached(one)
	send := func(publisher, seq uint64, events ...any) {
		sinks[0].Envelope(envelope(t, publisher, seq, "kv-events", events...))
	}
	send(7, 0, routed(0, planeStored(nil, 1), nil))
	send(7, 1, routed(2, planeStored(nil, 3), nil)) // event 1 was lost
	require.True(t, r.planeHolds(one, 3))
	require.Equal(t, StateDegraded, r.status(one).State)
	require.Equal(t, uint64(1), r.status(one).Resets)
	send(7, 2, routed(3, planeStored(77, 4), nil))
	require.Equal(t, map[string]uint64{"unknown_parent": 1}, r.status(one).Missing.Map())
	send(7, 3, routed(4, "cleared", nil), routed(5, planeStored(nil, 5), nil))
	require.Equal(t, StateConnected, r.status(one).State)
	require.Empty(t, r.status(one).Missing.Map(), "what was missed before is gone")
	require.Equal(t, map[string]uint64{"unknown_parent": 1}, r.status(one).Refused.Map(), "and stays counted")
	// A new life of the publisher sends, and a late event of the old life comes.
	send(7, 4, routed(6, planeStored(77, 4), nil))
	require.NotEmpty(t, r.status(one).Missing.Map())
	send(8, 0, routed(0, planeStored(nil, 6), nil))
	require.Empty(t, r.status(one).Missing.Map(), "the rank begins anew")
	send(7, 5, routed(7, planeStored(nil, 9), nil))
	require.True(t, r.planeHolds(one, 6))
	require.Equal(t, uint64(2), r.status(one).Resets)
	require.Equal(t, uint64(1), r.status(one).Refused[StalePublisher])
	// Events about other owners' blocks count with the ids of the rank's own publisher,
	// and not with those of other publishers.
	send(8, 1, routed(1, planeStored(nil, 9), event{"residency_domain": "cache_owner"}))
	send(9, 0, routed(44, planeStored(nil, 9), event{"residency_domain": "cache_owner"}))
	send(8, 2, routed(2, planeStored(nil, 10), nil))
	require.True(t, r.planeHolds(one, 6, 10))
	require.Equal(t, StateConnected, r.status(one).State)
	require.Equal(t, uint64(2), r.status(one).Refused[ForeignOwner])
}

func TestThePlaneCountsWhatBelongsToNobody(t *testing.T) {
	var mu sync.Mutex
	hooked := map[Reason]uint64{}
	h := newHand()
	w := newZMQWorker(t, 0, 0)
	r := newRig(t, func(c *Config) {
		c.Channels = []Channel{h}
		c.Hooks.Refused = func(k worker.Rank, why Reason, n uint64) {
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, worker.Rank{}, k)
			hooked[why] += n
		}
	})
	sink := <-h.sink
	r.follow(worker.KVEvents{}, w.source())
	two := worker.Rank{ID: 2}
	r.attached(one)
	sink.Envelope([]byte("nonsense"))
	sink.Envelope(envelope(t, 7, 0, "kv_metrics"))
	sink.Envelope(envelope(t, 7, 0, "kv-events", 17, routed(0, "cleared", event{"worker_id": 3}), routed(0, planeStored(nil, 1), event{"dp_rank": 1}),
		routed(0, planeStored(nil, 1), event{"worker_id": 2}), routed(1, "cleared", event{"worker_id": 2})))
	sink.Refuse(BadFrames, 1)
	want := map[string]uint64{"malformed": 2, "foreign_topic": 1, "unknown_worker": 2, "second_source": 2, "bad_frames": 1}
	require.Equal(t, want, r.sub.Channels()[0].Refused.Map())
	require.Zero(t, r.status(two).Blocks, "its own stream tells of it")
	w.store(1, false)
	r.eventually("its own stream", func() bool { return r.holds(two, w.held) })
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, hooked, 5)
	require.Contains(t, r.sub.Channels()[0].LastError, "kv_metrics")
}

func TestARankThatJoinsLateIsDegraded(t *testing.T) {
	r, sinks := planeRig(t, newHand())
	r.follow()
	send := func(seq uint64, events ...any) { sinks[0].Envelope(envelope(t, 7, seq, "kv-events", events...)) }
	send(0, routed(1, planeStored(nil, 1), nil))
	require.Equal(t, uint64(1), r.sub.Channels()[0].Refused[UnknownWorker])
	r.follow(worker.KVEvents{}, worker.KVEvents{})
	two := worker.Rank{ID: 2}
	r.attached(one, two)
	send(1, routed(2, planeStored(nil, 2), nil), routed(1, planeStored(nil, 1), event{"worker_id": 2}))
	require.Equal(t, StateDegraded, r.status(one).State, "event 1 came before it was known")
	require.Equal(t, StateConnected, r.status(two).State, "nothing of it was missed")
	// A rank that leaves and comes back has lost its blocks in the index, not at the
	// worker.
	r.follow(worker.KVEvents{})
	r.eventually("left", func() bool { _, ok := r.index.Slot(two); return !ok })
	send(2, routed(2, planeStored(nil, 2), event{"worker_id": 2}))
	r.follow(worker.KVEvents{}, worker.KVEvents{})
	r.attached(one, two)
	send(3, routed(3, planeStored(nil, 3), event{"worker_id": 2}))
	require.Equal(t, StateDegraded, r.status(two).State)
	require.True(t, r.planeHolds(two, 3))
}

func TestARankIsNotKnownWholeAfterItsPublisherLostAMessage(t *testing.T) {
	r, sinks := planeRig(t, newHand())
	r.follow(worker.KVEvents{}, worker.KVEvents{})
	two := worker.Rank{ID: 2}
	r.attached(one, two)
	sinks[0].Envelope(envelope(t, 7, 0, "kv-events", routed(0, planeStored(nil, 1), nil)))
	sinks[0].Envelope(envelope(t, 7, 2, "kv-events", routed(1, planeStored(nil, 2), event{"worker_id": 2})))
	require.Equal(t, StateDegraded, r.status(two).State, "message 1 may have been about it")
	require.Equal(t, StateConnected, r.status(one).State)
}

// The event had found its rank just before the rank left.
func TestNothingIsAppliedToARankThatHasLeft(t *testing.T) {
	cfg := Config{Index: newTree(t), Channels: []Channel{newHand()}}.withDefaults()
	p := newPlane(&cfg)
	p.add(one, newPlaneRank(&cfg, one))
	pr, _ := p.rank(one)
	p.remove(one)
	require.False(t, pr.take(p.intakes[0], Envelope{}, true, []RouterEvent{{Event: Event{Kind: Cleared}, Rank: one}}))
	require.Zero(t, pr.snapshot().Events)
}

func TestRanksOfAChannelThatIsDownSaySo(t *testing.T) {
	a, b := newHand(), newHand()
	r, sinks := planeRig(t, a, b)
	r.follow(worker.KVEvents{}, worker.KVEvents{})
	two := worker.Rank{ID: 2}
	r.attached(one, two)
	sinks[0].Envelope(envelope(t, 7, 0, "kv-events", routed(0, planeStored(nil, 1), nil)))
	sinks[1].Envelope(envelope(t, 8, 0, "kv-events", routed(0, planeStored(nil, 1), event{"worker_id": 2})))
	sinks[0].Down(errors.New("cable cut"))
	require.Equal(t, StateConnecting, r.status(one).State)
	require.True(t, r.planeHolds(one, 1), "what was known is kept")
	require.Equal(t, StateConnected, r.status(two).State)
	require.Equal(t, "cable cut", r.sub.Channels()[0].LastError)
	require.False(t, r.sub.Channels()[0].Up)
	sinks[0].Up()
	require.Equal(t, StateConnected, r.status(one).State)
	// The same events come again through the other channel, and are applied once.
	sinks[1].Envelope(envelope(t, 7, 0, "kv-events", routed(0, planeStored(nil, 1), nil), routed(1, planeStored(nil, 2), nil)))
	require.True(t, r.planeHolds(one, 1, 2))
	require.Equal(t, map[string]uint64{"repeated": 1}, r.status(one).Refused.Map())
	require.Empty(t, r.status(one).Missing.Map())
}

// The publisher uses another library. It goes away and comes back in a new life.
func TestThePlaneOverZeroMQ(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	listen := func(addr string) zmq4.Socket {
		pub := zmq4.NewPub(ctx)
		require.Eventually(t, func() bool { return pub.Listen("tcp://"+addr) == nil }, 20*time.Second, time.Millisecond)
		return pub
	}
	pub := listen("127.0.0.1:0")
	addr := pub.Addr().String()
	r := newRig(t, func(c *Config) { c.PlaneZMQ = []string{addr} })
	r.follow(worker.KVEvents{})
	r.attached(one)
	publish := func(pub zmq4.Socket, publisher, seq uint64, events ...any) {
		_ = pub.SendMulti(zmq4.NewMsgFrom([]byte("kv-events"), be64(publisher), be64(seq), envelope(t, publisher, seq, "kv-events", events...)))
	}
	seq := uint64(0)
	r.eventually("the first that arrives", func() bool {
		publish(pub, 7, seq, routed(seq, planeStored(nil, seq), nil))
		seq++
		return r.status(one).Seen
	})
	publish(pub, 7, seq, routed(seq, "cleared", nil), routed(seq+1, planeStored(nil, 5), nil))
	r.eventually("in step", func() bool { return r.planeHolds(one, 5) && r.status(one).State == StateConnected })
	_ = pub.SendMulti(zmq4.NewMsgFrom([]byte("kv-events"), be64(7)))
	r.eventually("bad frames are counted", func() bool { return r.sub.Channels()[0].Refused[BadFrames] == 1 })
	_ = pub.Close()
	r.eventually("down", func() bool { return r.status(one).State == StateConnecting && !r.sub.Channels()[0].Up })
	require.True(t, r.planeHolds(one, 5))
	pub = listen(addr)
	defer pub.Close()
	seq = 0
	r.eventually("the next life", func() bool {
		publish(pub, 8, seq, routed(seq, planeStored(nil, 600), nil))
		seq++
		return r.planeHolds(one, 600)
	})
	require.Positive(t, r.status(one).Resets)
	require.NoError(t, r.index.Check())
}

// Publishers send, lose, repeat and restart at random, over two channels at once and
// while ranks come and go. Each rank that says that it is in step must have the blocks
// that its worker holds.
func TestThePlaneNeverBelievesWhatIsNotSo(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	r, sinks := planeRig(t, newHand(), newHand())
	type life struct {
		publisher, seq uint64
		id             [2]uint64
		held           [2]map[uint64]bool
		heard          [2]bool // an event of this life has come; else the rank's id is of the life before
	}
	ranks := []worker.Rank{{ID: 1}, {ID: 2}}
	publishers := uint64(0)
	begin := func() *life {
		publishers++
		return &life{publisher: publishers, held: [2]map[uint64]bool{{}, {}}}
	}
	p := begin() // both ranks have the same publisher
	r.follow(worker.KVEvents{}, worker.KVEvents{})
	r.attached(ranks...)
	compared := 0
	for round := range 3000 {
		switch k := rng.IntN(200); k {
		case 0:
			p = begin()
		case 1:
			r.follow(worker.KVEvents{})
			r.eventually("left", func() bool { _, ok := r.index.Slot(ranks[1]); return !ok })
		case 2, 3:
			r.follow(worker.KVEvents{}, worker.KVEvents{})
			r.attached(ranks...)
		}
		var events []any
		var of [2]bool
		for range 1 + rng.IntN(3) {
			i := rng.IntN(2)
			of[i] = true
			block := rng.Uint64N(20)
			var data any
			switch k := rng.IntN(30); {
			case k == 0:
				data, p.held[i] = "cleared", map[uint64]bool{}
			case k < 12:
				data = planeRemoved(block)
				delete(p.held[i], block)
			default:
				data = planeStored(nil, block)
				p.held[i][block] = true
			}
			events = append(events, routed(p.id[i], data, event{"worker_id": ranks[i].ID}))
			p.id[i]++
		}
		e := envelope(t, p.publisher, p.seq, "kv-events", events...)
		p.seq++
		if rng.IntN(40) > 0 { // else the message is lost
			p.heard = [2]bool{p.heard[0] || of[0], p.heard[1] || of[1]}
			in := rng.IntN(2)
			sinks[in].Envelope(e)
			if rng.IntN(10) == 0 {
				sinks[1-in].Envelope(e)
			}
		}
		for i, k := range ranks {
			s := r.status(k)
			// A rank cannot know yet that the last message was lost.
			if !p.heard[i] || s.State != StateConnected || s.LastSeq+1 != p.id[i] {
				continue
			}
			compared++
			var want []uint64
			for b := range p.held[i] {
				want = append(want, b)
			}
			require.True(t, r.planeHolds(k, want...), "round %d, rank %s: %+v", round, k, s)
		}
	}
	require.Greater(t, compared, 200)
	require.NoError(t, r.index.Check())
}
