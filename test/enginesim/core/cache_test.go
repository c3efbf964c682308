package core

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func tokens(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

func TestBlockHashesAreSGLangs(t *testing.T) {
	// These were computed with hashlib.sha256 over the parent's digest and the ids, 4
	// bytes little-endian each, then int(hexdigest[:16], 16) as a signed number.
	sums := chainBlocks(nil, []uint32{1, 2, 3, 4, 5}, 2, Namespace{})
	require.Len(t, sums, 2, "only full pages")
	require.Equal(t, []int64{3817746824117602890, -4216701448867210342}, []int64{sums[0].hash(), sums[1].hash()})
	require.Equal(t, sums, chainBlocks(sums[:1:1], []uint32{1, 2, 3, 4, 5}, 2, Namespace{}), "a chain can be continued")
}

// checkCache checks the invariants in the comment of cache.
func checkCache(t testing.TB, c *cache) {
	t.Helper()
	pinned, leaves := 0, 0
	children := make(map[*block]int)
	for h, b := range c.blocks {
		require.Equal(t, h, b.hash)
		if b.pins > 0 {
			pinned++
		}
		if b.parent != nil {
			children[b.parent]++
			require.Same(t, b.parent, c.blocks[b.parent.hash])
			require.False(t, b.pins > 0 && b.parent.pins == 0, "a pinned block has a pinned parent")
		}
		if b.heapAt >= 0 {
			leaves++
			require.Same(t, b, c.evictable[b.heapAt])
		}
		require.Equal(t, b.pins == 0 && b.children == 0, b.heapAt >= 0)
	}
	for _, b := range c.blocks {
		require.Equal(t, children[b], b.children)
	}
	require.Len(t, c.evictable, leaves)
	require.Equal(t, c.pinned, pinned)
	require.LessOrEqual(t, len(c.blocks)+c.private, c.capacity)
}

func TestCacheKeepsItsInvariants(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		r := &Rank{maxRunning: 6, cache: newCache(2, 24, true, false)}
		mirror := map[int64]bool{}
		var holds []*hold
		for step := range 400 {
			if len(holds) > 0 && (rnd.IntN(2) == 0 || len(holds) == 6) {
				i := rnd.IntN(len(holds))
				holds[i].Release()
				holds = append(holds[:i], holds[i+1:]...)
			} else {
				ids := make([]uint32, 1+rnd.IntN(12))
				for i := range ids {
					ids[i] = uint32(rnd.IntN(2))
				}
				sums := chainBlocks(nil, ids, 2, Namespace{})
				ctx, cancel := context.WithCancel(t.Context())
				cancel() // the request is admitted at once or not at all
				if h, err := r.admit(ctx, sums, (len(ids)+1)/2+rnd.IntN(3)); err == nil {
					h.Store(sums, ids)
					holds = append(holds, h)
				}
			}
			r.mu.Lock()
			for _, e := range r.cache.events {
				require.Equal(t, e.Kind == BlockRemoved, mirror[e.Hash], "seed %d step %d", seed, step)
				mirror[e.Hash] = e.Kind == BlockStored
			}
			r.cache.events = nil
			checkCache(t, r.cache)
			r.mu.Unlock()
		}
		for _, h := range holds {
			h.Release()
		}
		require.Zero(t, r.cache.held(), "seed %d", seed)
		require.Zero(t, r.running)
	}
}

func TestTheLeastRecentlyUsedLeafGoesFirst(t *testing.T) {
	r := &Rank{maxRunning: 1, cache: newCache(1, 4, false, false)}
	use := func(ids ...uint32) int {
		sums := chainBlocks(nil, ids, 1, Namespace{})
		h, err := r.admit(t.Context(), sums, len(ids))
		require.NoError(t, err)
		h.Store(sums, ids)
		h.Release()
		return h.Cached
	}
	use(1, 2)
	use(1, 3)
	use(9)
	require.Equal(t, 2, use(1, 2), "makes 2 younger than 3")
	use(8) // block 3 must be evicted
	require.Equal(t, 2, use(1, 2))
	require.Equal(t, 1, use(9))
	require.Equal(t, 1, use(1, 3), "3 is gone, its parent is not")
}

func TestAdmissionIsFirstInFirstOut(t *testing.T) {
	r := &Rank{maxRunning: 10, cache: newCache(1, 10, false, false)}
	first, err := r.admit(t.Context(), nil, 8)
	require.NoError(t, err)
	order := make(chan string, 2)
	ask := func(name string, need, queued int) {
		go func() {
			h, err := r.admit(context.Background(), nil, need)
			if err == nil {
				h.Release()
				order <- name
			}
		}()
		require.Eventually(t, func() bool { return r.state(false).Queued == queued }, 20*time.Second, 2*time.Millisecond, name+" waits")
	}
	ask("large", 9, 1)
	ask("small", 1, 2) // it would fit now, but waits behind another request
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := r.admit(ctx, nil, 1); gone <- err }()
	require.Eventually(t, func() bool { return r.state(false).Queued == 3 }, 20*time.Second, 2*time.Millisecond, "all wait")
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	first.Release()
	got := []string{<-order, <-order}
	require.ElementsMatch(t, []string{"large", "small"}, got)
	require.Zero(t, r.state(false).HeldBlocks)
}

func TestSerialPrefillsWaitForEachOther(t *testing.T) {
	r := &Rank{}
	require.Equal(t, time.Hour, r.computeFor(time.Hour, false))
	require.Equal(t, time.Hour, r.computeFor(time.Hour, true))
	second := r.computeFor(time.Hour, true)
	require.Greater(t, second, 90*time.Minute)
	require.LessOrEqual(t, second, 2*time.Hour)
}

func BenchmarkChainBlocks(b *testing.B) {
	for _, n := range []int{400, 45_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ids := tokens(n)
			for b.Loop() {
				chainBlocks(nil, ids, 16, Namespace{})
			}
		})
	}
}

// SGLang publishes an extra_key's blocks under the plain hashes.
func TestAnExtraKeyKeepsBlocksApartAndIsNotTold(t *testing.T) {
	s := []Namespace{{}, {Extra: "k"}, {Extra: "l"}, {Adapter: "a"}, {Adapter: "a", Extra: "k"}}
	var own, told []int64
	for _, ns := range s {
		sums := chainBlocks(nil, []uint32{1, 2, 3, 4}, 2, ns)
		own, told = append(own, sums[1].hash()), append(told, sums[1].published())
	}
	for i := range own {
		require.NotContains(t, own[:i], own[i])
	}
	require.Equal(t, []int64{told[0], told[0], told[0], own[3], own[4]}, told)
}

func TestIntegersTakeTheShortestForm(t *testing.T) {
	for v, want := range map[int64]string{
		0: "00", 127: "7f", 128: "cc80", 255: "ccff", 256: "cd0100", 65535: "cdffff", 65536: "ce00010000",
		1<<32 - 1: "ceffffffff", 1 << 32: "cf0000000100000000", 1<<63 - 1: "cf7fffffffffffffff",
		-1: "ff", -32: "e0", -33: "d0df", -128: "d080", -129: "d1ff7f", -32768: "d18000", -32769: "d2ffff7fff",
		-1 << 31: "d280000000", -1<<31 - 1: "d3ffffffff7fffffff", -1 << 63: "d38000000000000000",
	} {
		require.Equal(t, want, hex.EncodeToString(AppendInt(nil, v)), "%d", v)
	}
}
