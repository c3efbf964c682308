package kvevents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// life is one process of a subscriber, with its tree.
type life struct {
	t                *testing.T
	tree             *kvindex.Tree
	sub              *Subscriber
	restored, resets atomic.Int64
	given            weak.Pointer[kvindex.Dump] // the dump that it resumed from
	stop             context.CancelFunc
	ended            chan error
}

// begin starts a life that gets a dump (nil: none) and follows workers.
func begin(t *testing.T, dump []byte, change func(*Config), workers ...*worker.Worker) *life {
	t.Helper()
	l := &life{t: t, ended: make(chan error, 1)}
	var err error
	l.tree, err = kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 32 << 20, NoHugePages: true}, kvindex.NewSlots())
	require.NoError(t, err)
	cfg := Config{
		Index: l.tree, MinBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond, Audit: 100 * time.Millisecond,
		Hooks: Hooks{
			Restored: func(worker.Rank, int) { l.restored.Add(1) },
			Reset:    func(worker.Rank, Cause) { l.resets.Add(1) },
		},
	}
	if change != nil {
		change(&cfg)
	}
	l.sub, err = NewSubscriber(cfg)
	require.NoError(t, err)
	if dump != nil {
		d, err := kvindex.ReadDump(bytes.NewReader(dump))
		require.NoError(t, err)
		l.given = weak.Make(d)
		_, err = l.sub.Resume(d)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	go func() { l.ended <- l.sub.Run(ctx) }()
	t.Cleanup(func() { l.end() })
	l.follow(workers...)
	return l
}

func (l *life) follow(workers ...*worker.Worker) {
	snap, err := worker.NewSnapshot(1, workers)
	require.NoError(l.t, err)
	l.sub.Update(snap)
}

func (l *life) dump() []byte {
	l.t.Helper()
	var b bytes.Buffer
	w := kvindex.NewDumpWriter(&b)
	require.NoError(l.t, l.sub.Dump(w))
	require.NoError(l.t, w.Close())
	return b.Bytes()
}

// end ends the life and returns its last dump.
func (l *life) end() []byte {
	l.t.Helper()
	if l.stop != nil {
		l.stop()
		require.NoError(l.t, <-l.ended)
		l.stop = nil
	}
	return l.dump()
}

func (l *life) status(r worker.Rank) RankStatus {
	for _, s := range l.sub.Status() {
		if s.Rank == r {
			return s
		}
	}
	return RankStatus{}
}

// heard waits until a sequence is applied and no replay runs.
func (l *life) heard(seq uint64) {
	l.t.Helper()
	require.Eventually(l.t, func() bool {
		s := l.status(one)
		return s.Seen && s.LastSeq == seq && (s.State == StateConnected || s.State == StateDegraded)
	}, 20*time.Second, time.Millisecond, "sequence %d: %v", seq, lazily(func() string { b, _ := json.Marshal(l.sub.Status()); return string(b) }))
}

func wireWorker(t *testing.T, at worker.KVEvents) *worker.Worker {
	w := testWorker(t, 1, at)
	w.BlockSize = 4
	return w
}

// The subscriber restarts beside a worker that goes on. Whatever the worker does in the
// meantime, the index equals its cache in the end, or says that it is degraded and has
// none of the dumped blocks.
func TestAfterARestartTheIndexIsWhatTheWorkerHolds(t *testing.T) {
	const before, keep = 60, 100
	publish := func(p *wirePublisher, c *engineCache, n int) {
		for range n {
			p.publish(c.message(5))
		}
	}
	again := func(p *wirePublisher, c *engineCache) { // restarts the engine on the same ports
		p.mu.Lock()
		p.seq, p.kept = 0, nil
		p.mu.Unlock()
		c.held, c.leaves = map[int64]*engineBlock{}, nil
	}
	for name, x := range map[string]struct {
		down               func(*wirePublisher, *engineCache)
		restored, degraded bool
	}{
		"nothing happened":            {func(*wirePublisher, *engineCache) {}, true, false},
		"blocks came and went":        {func(p *wirePublisher, c *engineCache) { publish(p, c, 40) }, true, false},
		"as far as replays reach":     {func(p *wirePublisher, c *engineCache) { publish(p, c, keep-2) }, true, false},
		"one more than replays reach": {func(p *wirePublisher, c *engineCache) { publish(p, c, keep) }, false, true},
		"far more than that":          {func(p *wirePublisher, c *engineCache) { publish(p, c, 3*keep) }, false, true},
		"all blocks were cleared": {func(p *wirePublisher, c *engineCache) {
			publish(p, c, 3)
			p.publish([]byte("\x93\xca\x00\x00\x00\x00\x91\x81\xa4type\xb0AllBlocksCleared\x00"))
			c.held, c.leaves = map[int64]*engineBlock{}, nil
			publish(p, c, 3)
		}, true, false},
		"the engine restarted and was quiet":        {func(p *wirePublisher, c *engineCache) { again(p, c) }, false, false},
		"the engine restarted and is not so far":    {func(p *wirePublisher, c *engineCache) { again(p, c); publish(p, c, before/2) }, false, false},
		"the engine restarted and is where it was":  {func(p *wirePublisher, c *engineCache) { again(p, c); publish(p, c, before) }, false, false},
		"the engine restarted and is farther":       {func(p *wirePublisher, c *engineCache) { again(p, c); publish(p, c, before+20) }, false, false},
		"the engine restarted and outran replays":   {func(p *wirePublisher, c *engineCache) { again(p, c); publish(p, c, 3*keep) }, false, true},
		"the engine restarted, is the next message": {func(p *wirePublisher, c *engineCache) { again(p, c); publish(p, c, before+1) }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newWirePublisher(t, false, keep, 400)
			c := newEngineCache(rand.New(rand.NewPCG(5, 6)), 200, false)
			w := wireWorker(t, p.source())
			publish(p, c, before)
			first := begin(t, nil, nil, w)
			first.heard(before - 1)
			c.requireEqual(t, first.tree, one)
			dump := first.end()

			x.down(p, c)
			second := begin(t, dump, nil, w)
			fresh := begin(t, nil, nil, w) // what a process without a dump knows
			publish(p, c, 1)
			seq, _, _ := p.counts()
			second.heard(seq - 1)
			fresh.heard(seq - 1)
			require.Equal(t, x.degraded, second.status(one).State == StateDegraded)
			require.Equal(t, x.restored, second.restored.Load() == 1)
			require.Equal(t, x.restored, second.resets.Load() == 0)
			require.Zero(t, second.status(one).Kept)
			if !x.degraded {
				c.requireEqual(t, second.tree, one)
			}
			if !x.restored { // the second life knows no more than that
				require.Equal(t, fresh.status(one).Blocks, second.status(one).Blocks)
			}
			// Restart once more, now from a life that is in step.
			third := begin(t, second.end(), nil, w)
			publish(p, c, 2)
			third.heard(seq + 1)
			require.Equal(t, int64(1), third.restored.Load())
			require.Equal(t, x.degraded, third.status(one).State == StateDegraded, "what was missed is missing still")
			if !x.degraded {
				c.requireEqual(t, third.tree, one)
			}
		})
	}
}

func TestWithoutReplaysTheNextMessageMustBeTheFirstHeard(t *testing.T) {
	for name, x := range map[string]struct {
		missed   int
		restored bool
	}{"it is": {0, true}, "one is missing": {1, false}} {
		t.Run(name, func(t *testing.T) {
			p := newWirePublisher(t, false, 1, 400)
			at := p.source()
			at.ReplayPort = 0
			c := newEngineCache(rand.New(rand.NewPCG(6, 6)), 200, false)
			w := wireWorker(t, at)
			connected := func(l *life) {
				require.Eventually(t, func() bool {
					p.mu.Lock()
					defer p.mu.Unlock()
					return len(p.subs) == 1
				}, 20*time.Second, time.Millisecond)
			}
			first := begin(t, nil, nil, w)
			connected(first)
			for range 20 {
				p.publish(c.message(5))
			}
			first.heard(19)
			dump := first.end()
			require.Eventually(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.subs) == 0 }, 20*time.Second, time.Millisecond)
			for range x.missed {
				p.publish(c.message(5))
			}
			second := begin(t, dump, nil, w)
			connected(second)
			require.Eventually(t, func() bool { return second.status(one).State == StateDegraded }, 20*time.Second, time.Millisecond)
			require.Positive(t, second.status(one).Kept)
			require.Zero(t, second.status(one).Blocks, "nothing is believed without proof")
			p.publish(c.message(5))
			second.heard(uint64(20 + x.missed))
			require.Equal(t, x.restored, second.restored.Load() == 1)
			require.Equal(t, !x.restored, second.status(one).State == StateDegraded)
			if x.restored {
				c.requireEqual(t, second.tree, one)
			} else {
				require.LessOrEqual(t, second.status(one).Blocks, 5)
			}
		})
	}
}

func TestWhatHasNotAppearedIsDumpedAgainUntilItIsForgotten(t *testing.T) {
	p := newWirePublisher(t, false, 100, 400)
	c := newEngineCache(rand.New(rand.NewPCG(7, 7)), 200, false)
	w := wireWorker(t, p.source())
	p.publish(c.message(50))
	dump := begin(t, nil, nil, w)
	dump.heard(0)
	b := dump.end()
	// These lives never hear of the worker, or cannot reach it.
	for range 3 {
		b = begin(t, b, nil).end()
	}
	away := begin(t, b, func(cfg *Config) { cfg.Dial = nowhere }, w)
	require.Eventually(t, func() bool { return away.status(one).Kept > 0 }, 20*time.Second, time.Millisecond)
	b = away.end()
	last := begin(t, b, nil, w)
	last.heard(0)
	require.Equal(t, int64(1), last.restored.Load())
	c.requireEqual(t, last.tree, one)

	// These dumps are from another source, of another block size, and too old.
	other := wireWorker(t, p.source())
	other.KVEvents.Topic = "x"
	wide := wireWorker(t, p.source())
	wide.BlockSize = 8
	for _, l := range []*life{
		begin(t, b, nil, other), begin(t, b, nil, wide),
		begin(t, b, func(cfg *Config) { cfg.Keep = time.Nanosecond }, w),
	} {
		l.heard(0)
		require.Zero(t, l.restored.Load())
		require.Zero(t, l.status(one).Kept)
	}
	// These ranks are forgotten while they wait; the subscriber knows the one and not the
	// other.
	short := func(cfg *Config) { cfg.Keep, cfg.Dial = time.Since(oldest(t, b))+50*time.Millisecond, nowhere }
	for _, l := range []*life{begin(t, b, short), begin(t, b, short, w)} {
		require.Eventually(t, func() bool {
			d, err := kvindex.ReadDump(bytes.NewReader(l.dump()))
			return err == nil && len(d.Ranks()) == 0
		}, 20*time.Second, time.Millisecond)
		require.Zero(t, l.status(one).Kept)
	}
}

func oldest(t *testing.T, dump []byte) time.Time {
	d, err := kvindex.ReadDump(bytes.NewReader(dump))
	require.NoError(t, err)
	return d.Ranks()[0].At
}

func TestThePlaneTakesWhatWasHeldWhenTheNextEventProvesIt(t *testing.T) {
	for name, x := range map[string]struct {
		publisher, id uint64
		restored      bool
		blocks        int
	}{
		"the next one": {7, 3, true, 4}, "one was missed": {7, 4, false, 1}, "another publisher": {8, 3, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := testWorker(t, 1, worker.KVEvents{})
			told := func(l *life) {
				require.Eventually(t, func() bool {
					_, why := l.sub.plane.rank(one)
					return why == UnknownWorker && l.sub.told.Load() != nil && len(*l.sub.told.Load()) == 1
				}, 20*time.Second, time.Millisecond)
			}
			h := newHand()
			first := begin(t, nil, func(c *Config) { c.Channels = []Channel{h} }, w)
			told(first)
			sink := <-h.sink
			sink.Envelope(envelope(t, 6, 0, "kv-events", routed(0, planeStored(nil, 8), nil))) // an event of an earlier life
			for id := range uint64(3) {
				sink.Envelope(envelope(t, 7, id, "kv-events", routed(id, planeStored(nil, id+1), nil)))
			}
			require.Equal(t, 3, first.status(one).Blocks)
			dump := first.end()

			h = newHand()
			second := begin(t, dump, func(c *Config) { c.Channels = []Channel{h} }, w)
			told(second)
			sink = <-h.sink
			sink.Envelope(envelope(t, 7, 2, "kv-events", routed(2, planeStored(nil, 3), nil)))
			sink.Envelope(envelope(t, 6, 1, "kv-events", routed(1, planeStored(nil, 8), nil)))
			require.Equal(t, 3, second.status(one).Kept, "a repetition proves nothing new, nor do an earlier life's last words")
			require.Zero(t, second.status(one).Blocks)
			sink.Envelope(envelope(t, x.publisher, x.id, "kv-events", routed(x.id, planeStored(nil, 9), nil)))
			s := second.status(one)
			require.Equal(t, x.blocks, s.Blocks)
			require.Equal(t, x.restored, second.restored.Load() == 1)
			require.Equal(t, !x.restored, s.State == StateDegraded)
			require.Zero(t, s.Kept)
		})
	}
}

// Later messages do not say again which group is the main attention's and which blocks
// are salted.
func TestADecoderGoesOnWhereAnotherLeft(t *testing.T) {
	d := NewDecoder(2, 0, false)
	_, err := d.Decode(payload(t, 0,
		store(event{"block_hashes": []int{1}, "token_ids": []int{1, 2}, "group_idx": 1, "kv_cache_spec_kind": "full_attention", "cache_salt": "s"}),
		store(event{"block_hashes": []int{2}, "token_ids": []int{1, 2}, "group_idx": 2, "kv_cache_spec_kind": "sliding_window"})))
	require.NoError(t, err)
	b, err := json.Marshal(d.learnt())
	require.NoError(t, err)
	var l learnt
	require.NoError(t, json.Unmarshal(b, &l))
	next := NewDecoder(2, 0, false)
	next.resume(l)
	require.Equal(t, map[uint64]bool{1: true, 2: false}, next.groups)
	require.Equal(t, d.spaces.blocks, next.spaces.blocks)
	require.NotEmpty(t, next.spaces.blocks)
	require.Equal(t, d.sawWhole, next.sawWhole)
	more := payload(t, 0, removal(event{"block_hashes": []int{1}, "group_idx": 1}),
		store(event{"block_hashes": []int{3}, "parent_block_hash": 1, "token_ids": []int{3, 4}, "group_idx": 1}))
	want, err := d.Decode(more)
	require.NoError(t, err)
	got, err := next.Decode(more)
	require.NoError(t, err)
	require.Len(t, got.Events, 2)
	require.Equal(t, want, got)
}

func TestADumpThatCannotBeReadSaysWhy(t *testing.T) {
	tree := newTree(t)
	sub, err := NewSubscriber(Config{Index: tree})
	require.NoError(t, err)
	var b bytes.Buffer
	w := kvindex.NewDumpWriter(&b)
	tree.Attach(one)
	var c kvindex.RankCopy
	require.NoError(t, tree.Copy(one, &c))
	require.NoError(t, w.Add(&c, time.Now(), []byte("{")))
	require.NoError(t, w.Close())
	d, err := kvindex.ReadDump(&b)
	require.NoError(t, err)
	ranks, err := sub.Resume(d)
	require.ErrorContains(t, err, "position of rank 1/0")
	require.Zero(t, ranks)
}

func nowhere(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") }
