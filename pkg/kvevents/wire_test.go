package kvevents

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// wirePublisher publishes as an engine does, over its own sockets: a PUB socket that
// drops messages for a slow subscriber, and a ROUTER socket that replays the last
// messages.
type wirePublisher struct {
	t           *testing.T
	pub, router net.Listener
	small       bool // connections have small buffers
	old         bool // replays have the framing from before vLLM 0.26 and SGLang 0.5.22
	keep        int  // messages kept for replays
	highWater   int  // messages that may wait for each subscriber

	wg      sync.WaitGroup
	mu      sync.Mutex
	seq     uint64
	kept    [][]byte
	subs    map[*wireSub]bool
	conns   map[net.Conn]bool
	dropped int
	replays int
}

// smallBuffer is the size of a socket buffer that a test can fill.
const smallBuffer = 64 << 10

type wireSub struct{ out chan [][]byte }

func newWirePublisher(t *testing.T, old bool, keep, highWater int) *wirePublisher {
	p := &wirePublisher{t: t, old: old, keep: keep, highWater: highWater, small: highWater <= 100, subs: map[*wireSub]bool{}, conns: map[net.Conn]bool{}}
	var err error
	p.pub, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p.router, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p.wg.Go(func() { p.accept(p.pub, p.serveSub) })
	p.wg.Go(func() { p.accept(p.router, p.serveReplay) })
	t.Cleanup(func() {
		_ = p.pub.Close()
		_ = p.router.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *wirePublisher) source() worker.KVEvents {
	port := func(l net.Listener) uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }
	return worker.KVEvents{Host: "127.0.0.1", Port: port(p.pub), ReplayPort: port(p.router)}
}

func (p *wirePublisher) accept(l net.Listener, serve func(*peer)) {
	for {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		if p.small {
			_ = nc.(*net.TCPConn).SetWriteBuffer(smallBuffer)
		}
		p.mu.Lock()
		p.conns[nc] = true
		p.mu.Unlock()
		p.wg.Go(func() {
			serve(newPeer(nc))
			_ = nc.Close()
			p.mu.Lock()
			delete(p.conns, nc)
			p.mu.Unlock()
		})
	}
}

// cut breaks every connection.
func (p *wirePublisher) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for nc := range p.conns {
		_ = nc.(*net.TCPConn).SetLinger(0) // messages on their way are lost
		_ = nc.Close()
	}
}

func (p *wirePublisher) serveSub(c *peer) {
	if c.greet(1, "PUB") != nil {
		return
	}
	if _, _, err := c.read(); err != nil { // reads the subscription, which is to all topics
		return
	}
	s := &wireSub{out: make(chan [][]byte, p.highWater)}
	p.mu.Lock()
	p.subs[s] = true
	p.mu.Unlock()
	ended := make(chan struct{})
	p.wg.Go(func() { // until the far end or cut closes the connection
		defer close(ended)
		for {
			if _, _, err := c.read(); err != nil {
				return
			}
		}
	})
	defer func() {
		p.mu.Lock()
		delete(p.subs, s)
		p.mu.Unlock()
	}()
	for {
		select {
		case m := <-s.out:
			if c.send(m...) != nil {
				return
			}
		case <-ended:
			return
		}
	}
}

func (p *wirePublisher) serveReplay(c *peer) {
	if c.greet(1, "ROUTER") != nil {
		return
	}
	for {
		if _, b, err := c.read(); err != nil || len(b) != 0 {
			return
		}
		_, b, err := c.read()
		if err != nil || len(b) != 8 {
			return
		}
		p.mu.Lock()
		p.replays++
		first := p.seq - uint64(len(p.kept))
		from := max(binary.BigEndian.Uint64(b), first)
		var messages [][]byte
		if from < p.seq {
			messages = slices.Clone(p.kept[from-first:])
		}
		p.mu.Unlock()
		for i, m := range messages {
			if c.send(p.framed(from+uint64(i), m)...) != nil {
				return
			}
		}
		if c.send(p.framed(endOfReplay, nil)...) != nil {
			return
		}
	}
}

func (p *wirePublisher) framed(seq uint64, m []byte) [][]byte {
	if p.old {
		return [][]byte{nil, be64(seq), m}
	}
	return [][]byte{nil, nil, be64(seq), m}
}

// publish sends one message to all subscribers that have room for it.
func (p *wirePublisher) publish(m []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	frames := [][]byte{nil, be64(p.seq), m}
	p.seq++
	if p.kept = append(p.kept, m); len(p.kept) > p.keep {
		p.kept = p.kept[1:]
	}
	for s := range p.subs {
		select {
		case s.out <- frames:
		default:
			p.dropped++
		}
	}
}

func (p *wirePublisher) counts() (seq uint64, dropped, replays int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seq, p.dropped, p.replays
}

// engineCache is a worker's own cache: a tree of blocks of four tokens. It makes more
// kinds of events than an index needs.
type engineCache struct {
	rng    *rand.Rand
	held   map[int64]*engineBlock
	leaves []int64
	limit  int
	array  bool // encoding of events
	keeps  bool // it is not flushed as a whole any more
}

type engineBlock struct {
	parent   int64
	root     bool
	depth    int
	tokens   [4]uint32
	children int
	leaf     int // index in leaves; -1: none
}

func newEngineCache(rng *rand.Rand, limit int, array bool) *engineCache {
	return &engineCache{rng: rng, held: map[int64]*engineBlock{}, limit: limit, array: array}
}

// step makes one change and appends its event in msgpack.
func (c *engineCache) step(b []byte) []byte {
	if c.rng.IntN(20_000) == 0 && !c.keeps {
		c.held, c.leaves = map[int64]*engineBlock{}, nil
		if c.array {
			return append(b, "\x91\xb0AllBlocksCleared"...)
		}
		return append(b, "\x81\xa4type\xb0AllBlocksCleared"...)
	}
	if len(c.held) >= c.limit || len(c.leaves) > 0 && c.rng.IntN(4) == 0 {
		return c.evict(b)
	}
	n := &engineBlock{root: true, leaf: len(c.leaves)}
	if len(c.leaves) > 0 && c.rng.IntN(8) > 0 {
		at := c.leaves[c.rng.IntN(len(c.leaves))]
		for up := c.rng.IntN(3); up > 0 && !c.held[at].root; up-- {
			at = c.held[at].parent
		}
		if p := c.held[at]; p.depth < 40 {
			n.parent, n.root, n.depth = at, false, p.depth+1
			if p.children++; p.children == 1 {
				c.unleaf(p)
			}
		}
	}
	for i := range n.tokens {
		n.tokens[i] = c.rng.Uint32N(1 << 18)
	}
	hash := int64(c.rng.Uint64())
	n.leaf = len(c.leaves)
	c.leaves = append(c.leaves, hash)
	c.held[hash] = n
	return c.stored(b, hash, n)
}

func (c *engineCache) unleaf(n *engineBlock) {
	last := len(c.leaves) - 1
	c.leaves[n.leaf] = c.leaves[last]
	c.held[c.leaves[last]].leaf = n.leaf
	c.leaves, n.leaf = c.leaves[:last], -1
}

func (c *engineCache) evict(b []byte) []byte {
	hash := c.leaves[c.rng.IntN(len(c.leaves))]
	n := c.held[hash]
	c.unleaf(n)
	delete(c.held, hash)
	if !n.root {
		p := c.held[n.parent]
		if p.children--; p.children == 0 {
			p.leaf = len(c.leaves)
			c.leaves = append(c.leaves, n.parent)
		}
	}
	if c.array {
		return append(appendInt64(append(b, "\x93\xacBlockRemoved\x91"...), hash), "\xa3GPU"...)
	}
	b = append(b, "\x83\xa4type\xacBlockRemoved\xacblock_hashes\x91"...)
	return append(appendInt64(b, hash), "\xa6medium\xa3GPU"...)
}

func (c *engineCache) stored(b []byte, hash int64, n *engineBlock) []byte {
	name := func(s string) {
		if !c.array {
			b = append(append(b, 0xa0|byte(len(s))), s...)
		}
	}
	if c.array {
		b = append(b, "\x97\xabBlockStored"...)
	} else {
		b = append(b, "\x87\xa4type\xabBlockStored"...)
	}
	name("block_hashes")
	b = appendInt64(append(b, 0x91), hash)
	if name("parent_block_hash"); n.root {
		b = append(b, 0xc0)
	} else {
		b = appendInt64(b, n.parent)
	}
	name("token_ids")
	b = append(b, 0x94)
	for _, t := range n.tokens {
		b = binary.BigEndian.AppendUint32(append(b, 0xce), t)
	}
	name("block_size")
	b = append(b, 4)
	name("lora_id")
	b = append(b, 0xc0)
	name("medium")
	return append(b, "\xa3GPU"...)
}

func appendInt64(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
}

// message packs the events of so many steps as one batch.
func (c *engineCache) message(steps int) []byte {
	b := []byte{0x93, 0xca, 0, 0, 0, 0, 0xdc, byte(steps >> 8), byte(steps)}
	for range steps {
		b = c.step(b)
	}
	return append(b, 0)
}

// requireEqual compares an index with the cache, block by block.
func (c *engineCache) requireEqual(t *testing.T, index kvindex.Index, r worker.Rank) {
	t.Helper()
	st, _ := index.Stats(r)
	require.Equal(t, len(c.held), st.Blocks)
	slot, ok := index.Slot(r)
	require.True(t, ok)
	var dst kvindex.Overlap
	var chain []kvindex.LocalHash
	for hash, n := range c.held {
		chain = chain[:0]
		for {
			chain = kvindex.AppendLocalHashes(chain, n.tokens[:], 4, kvindex.Salt{}.Seed())
			if n.root {
				break
			}
			n = c.held[n.parent]
		}
		slices.Reverse(chain)
		index.Overlap(chain, &dst)
		require.Equal(t, uint32(len(chain)), dst.At(slot), "block %d", hash)
	}
	require.NoError(t, index.(*kvindex.Tree).Check())
}

// This is the promise of the package. A worker publishes as fast as it can, the
// connections are cut again and again, and the publisher's queue overflows. In the end
// the index holds what the worker holds. With the tag long there are a million events.
func TestAStreamThatIsCutAndReplayedEndsEqualToTheWorkersCache(t *testing.T) {
	for name, array := range map[string]bool{"maps and replays of today": false, "arrays and replays of old": true} {
		t.Run(name, func(t *testing.T) {
			const keep, perMessage = 10_000, 10 // as engines do
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 1))
			p := newWirePublisher(t, array, keep, 400)
			var mu sync.Mutex
			resets, gaps := 0, 0
			progress := make(chan struct{}, 1)
			r := newWireRig(t, p.source(), Hooks{
				Applied: func(worker.Rank, int, int) {
					select {
					case progress <- struct{}{}:
					default:
					}
				},
				Reset: func(worker.Rank, Cause) { mu.Lock(); resets++; mu.Unlock() },
				Gap:   func(worker.Rank) { mu.Lock(); gaps++; mu.Unlock() },
			})
			cache := newEngineCache(rng, 5_000, array)
			began := time.Now()
			total := demoEvents / perMessage
			cuts, replays := 0, uint64(0)
			for n := range total {
				// The cache must be full when it is compared at the end.
				cache.keeps = n > total/2
				p.publish(cache.message(perMessage))
				// There are twenty cuts in the middle half, each in a running stream.
				cut := n > total/4 && n < 3*total/4 && n%(total/40) == 0
				// A worker that outran its own replay buffer would rightly be forgotten;
				// another test covers that.
				running := func(s RankStatus) bool { return s.State == StateConnected && s.Replays > replays }
				for s := r.status(one); uint64(n) > s.LastSeq+keep/8 || cut && !running(s); s = r.status(one) {
					select {
					case <-progress:
					case <-time.After(time.Millisecond):
					}
				}
				if cut {
					replays = r.status(one).Replays // each connection begins with a replay
					p.cut()
					cuts++
				}
			}
			r.eventually("in step", func() bool {
				s := r.status(one)
				return s.State == StateConnected && s.LastSeq == uint64(total-1)
			})
			took := time.Since(began)
			cache.requireEqual(t, r.index, one)
			s := r.status(one)
			_, dropped, _ := p.counts()
			mu.Lock()
			defer mu.Unlock()
			t.Logf("%d events in %s (%.0f/s): %d blocks held, %d cuts, %d replays, %d gaps, %d messages dropped by the publisher's queue",
				demoEvents, took.Round(time.Millisecond), demoEvents/took.Seconds(), s.Blocks, cuts, s.Replays, gaps, dropped)
			require.Greater(t, s.Blocks, cache.limit/2)
			require.Positive(t, cuts)
			require.GreaterOrEqual(t, s.Replays, uint64(cuts))
			require.Zero(t, resets, "nothing was lost, so nothing is forgotten")
			require.Equal(t, uint64(demoEvents), s.Events, "each event once")
			require.Empty(t, s.Refused.Map())
		})
	}
}

// newWireRig is a rig whose only worker has blocks of four tokens.
func newWireRig(t *testing.T, at worker.KVEvents, hooks Hooks) *rig {
	return newWireRigWith(t, at, func(c *Config) { c.Hooks = hooks })
}

func newWireRigWith(t *testing.T, at worker.KVEvents, change func(*Config)) *rig {
	r := newRig(t, change)
	w := testWorker(t, 1, at)
	w.BlockSize = 4
	snap, err := worker.NewSnapshot(1, []*worker.Worker{w})
	require.NoError(t, err)
	r.sub.Update(snap)
	return r
}

// The messages that wait are bounded on both sides, and dropped ones are replayed.
func TestASubscriberThatStandsStillMissesMessagesAndCatchesUp(t *testing.T) {
	p := newWirePublisher(t, false, 10_000, 100)
	hold := make(chan struct{})
	r := newWireRigWith(t, p.source(), func(c *Config) {
		c.Hooks.Applied = func(worker.Rank, int, int) { <-hold }
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil {
				err = nc.(*net.TCPConn).SetReadBuffer(smallBuffer)
			}
			return nc, err
		}
	})
	r.eventually("connected", func() bool { return r.status(one).State == StateConnected })
	cache := newEngineCache(rand.New(rand.NewPCG(1, 2)), 1000, false)
	sent := uint64(0)
	for dropped := 0; dropped < 50; _, dropped, _ = p.counts() { // until messages are dropped
		p.publish(cache.message(200))
		sent++
		require.Less(t, sent, uint64(9_000), "somebody keeps more than is allowed")
	}
	p.publish(cache.message(1))
	close(hold)
	r.eventually("in step, after a replay at the beginning and one of what was dropped", func() bool {
		s := r.status(one)
		return s.LastSeq == sent && s.State == StateConnected && s.Replays > 1
	})
	cache.requireEqual(t, r.index, one)
	require.Zero(t, r.status(one).Resets)
}

// The connection is cut for longer than the publisher's replay buffer reaches back.
func TestAGapBeyondTheReplayBufferForgetsTheRankAndSaysSo(t *testing.T) {
	p := newWirePublisher(t, false, 20, 400)
	var mu sync.Mutex
	var causes []Cause
	r := newWireRig(t, p.source(), Hooks{Reset: func(_ worker.Rank, why Cause) { mu.Lock(); causes = append(causes, why); mu.Unlock() }})
	rng := rand.New(rand.NewPCG(1, 1))
	cache := newEngineCache(rng, 1000, false)
	for range 10 {
		p.publish(cache.message(5))
	}
	r.eventually("in step", func() bool { return r.status(one).LastSeq == 9 && r.status(one).State == StateConnected })
	cache.requireEqual(t, r.index, one)
	p.cut()
	for range 100 { // sent at once; the publisher keeps 20 of them
		p.publish(cache.message(5))
	}
	r.eventually("degraded", func() bool { return r.status(one).State == StateDegraded && r.status(one).LastSeq == 109 })
	mu.Lock()
	require.Equal(t, []Cause{Lost}, causes)
	mu.Unlock()
	// The index now has some of the worker's blocks and no others.
	st, _ := r.index.Stats(one)
	require.LessOrEqual(t, st.Blocks, len(cache.held))
	require.Positive(t, r.status(one).Missing[UnknownParent], "what hangs on lost blocks is counted")
	// The worker drops everything, as in a flush. The rank is then no longer degraded.
	cache.held, cache.leaves = map[int64]*engineBlock{}, nil
	p.publish(append([]byte{0x93, 0xca, 0, 0, 0, 0, 0x91}, append([]byte("\x81\xa4type\xb0AllBlocksCleared"), 0)...))
	p.publish(cache.message(50))
	r.eventually("clean", func() bool { return r.status(one).State == StateConnected && r.status(one).LastSeq == 111 })
	require.Empty(t, r.status(one).Missing.Map())
	cache.requireEqual(t, r.index, one)
}
