package kvindex

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

var dumpTime = time.UnixMilli(1_700_000_000_000)

// dumpOf dumps ranks of a tree. The note of each rank is its name.
func dumpOf(t testing.TB, tr *Tree, ranks ...worker.Rank) []byte {
	t.Helper()
	var b bytes.Buffer
	var c RankCopy
	w := NewDumpWriter(&b)
	for _, r := range ranks {
		require.NoError(t, tr.Copy(r, &c))
		require.Equal(t, r, c.Rank())
		require.NoError(t, w.Add(&c, dumpTime, []byte(r.String())))
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// loaded loads every rank of a dump into an index.
func loaded(t testing.TB, dump []byte, into Index) {
	t.Helper()
	d, err := ReadDump(bytes.NewReader(dump))
	require.NoError(t, err)
	var c RankCopy
	for _, x := range d.Ranks() {
		require.Equal(t, x.Rank.String(), string(x.Note))
		require.True(t, x.At.Equal(dumpTime))
		require.True(t, d.Copy(x.Rank, &c))
		require.Equal(t, x.Blocks, c.Blocks())
		into.Attach(x.Rank)
		left, err := c.Load(into)
		require.NoError(t, err)
		require.Zero(t, left)
		st, _ := into.Stats(x.Rank)
		require.Equal(t, x.Blocks, st.Blocks)
		require.Equal(t, x.TierBlocks, st.TierBlocks)
	}
}

// alike requires that two indexes answer the same for the ranks; their slots may
// differ.
func alike(t testing.TB, want, got Index, ranks []worker.Rank, chains ...[]LocalHash) {
	t.Helper()
	var a, b Overlap
	for _, r := range ranks {
		x, _ := want.Stats(r)
		y, _ := got.Stats(r)
		require.Equal(t, x.Blocks, y.Blocks, "rank %s", r)
		require.Equal(t, x.TierBlocks, y.TierBlocks, "rank %s", r)
	}
	for _, c := range chains {
		want.Overlap(c, &a)
		got.Overlap(c, &b)
		for _, r := range ranks {
			x, _ := want.Slot(r)
			y, _ := got.Slot(r)
			require.Equal(t, a.At(x), b.At(y), "rank %s, chain %v", r, c)
		}
	}
}

// chats stores sequences with common beginnings for a rank. It returns the path of each
// name.
func chats(t *testing.T, x Index, r worker.Rank, rng *rand.Rand, blocks int) map[EngineHash][]LocalHash {
	paths := map[EngineHash][]LocalHash{}
	var names []EngineHash
	for len(names) < blocks {
		e := Stored{}
		var path []LocalHash
		if len(names) > 0 && rng.IntN(10) > 0 {
			e.HasParent, e.Parent = true, names[rng.IntN(len(names))]
			path = paths[e.Parent]
		}
		for range 1 + rng.IntN(40) {
			path = append(slices.Clone(path), LocalHash(rng.Uint64()))
			h := EngineHash(rng.Uint64())
			e.Blocks = append(e.Blocks, Block{h, path[len(path)-1]})
			names, paths[h] = append(names, h), path
		}
		require.NoError(t, x.Store(r, e))
	}
	return paths
}

// paths returns the path of each name in the copy.
func (c *RankCopy) paths() map[EngineHash][]LocalHash {
	out := map[EngineHash][]LocalHash{}
	for _, h := range c.held {
		var path []LocalHash
		for b := h.block; b != 0; b = c.before(b) {
			path = append(path, c.locals[b-1])
		}
		slices.Reverse(path)
		out[h.name] = path
	}
	return out
}

// TestACopyIsOfOneInstantWhateverOthersDoMeanwhile lets a rank that shares blocks with
// the copied rank split, lengthen and clear them between the slices of a copy.
func TestACopyIsOfOneInstantWhateverOthersDoMeanwhile(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	tr := newTree(t, NewSlots())
	mine, other := worker.Rank{ID: 1}, worker.Rank{ID: 2}
	tr.Attach(mine)
	tr.Attach(other)
	paths := chats(t, tr, mine, rng, 12_000)
	var names []EngineHash
	for h := range paths {
		names = append(names, h)
	}
	slices.Sort(names)
	var c RankCopy
	for round := range 4 {
		c.begin(mine)
		pieces := 0
		for from, more := uint64(0), true; more; pieces++ {
			var err error
			from, more, err = tr.copySome(mine, from, &c)
			require.NoError(t, err)
			for range 50 {
				p := paths[names[rng.IntN(len(names))]]
				e := Stored{}
				for _, l := range append(slices.Clone(p[:1+rng.IntN(len(p))]), LocalHash(rng.Uint64())) {
					e.Blocks = append(e.Blocks, Block{EngineHash(rng.Uint64()), l})
				}
				require.NoError(t, tr.Store(other, e))
			}
			if rng.IntN(3) == 0 {
				require.NoError(t, tr.Clear(other))
			}
		}
		c.settle()
		require.Greater(t, pieces, 3, "a copy in one piece shows nothing")
		require.True(t, maps.EqualFunc(paths, c.paths(), slices.Equal), "round %d", round) // require.Equal would take minutes
	}
	require.NoError(t, tr.Check())
}

// TestACopyBesideTheBudgetHasWhatIsLeftAndNothingWrong: blocks that are shed between
// two slices may or may not be in the copy; blocks that stay must be.
func TestACopyBesideTheBudgetHasWhatIsLeftAndNothingWrong(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	tr, err := NewTree(TreeConfig{MaxBytes: 2 << 20, NoHugePages: true}, NewSlots())
	require.NoError(t, err)
	mine, other := worker.Rank{ID: 1}, worker.Rank{ID: 2}
	tr.Attach(mine)
	tr.Attach(other)
	paths := chats(t, tr, mine, rng, 24_000)
	var c RankCopy
	c.begin(mine)
	for from, more := uint64(0), true; more; {
		from, more, err = tr.copySome(mine, from, &c)
		require.NoError(t, err)
		chats(t, tr, other, rng, 2_500)
	}
	c.settle()
	st, _ := tr.Stats(mine)
	require.Positive(t, st.Shed)
	require.Less(t, st.Blocks, c.Blocks(), "nothing was shed after it was copied")
	got := c.paths()
	for h, p := range got {
		require.True(t, slices.Equal(paths[h], p), "name %x", h)
	}
	require.NoError(t, tr.Copy(mine, &c))
	for h := range c.paths() {
		require.NotNil(t, got[h], "name %x is still there", h)
	}
}

func TestWhatDoesNotFitTheBudgetIsCountedWhenADumpIsLoaded(t *testing.T) {
	tr := newTree(t, NewSlots())
	r := worker.Rank{ID: 1}
	tr.Attach(r)
	chats(t, tr, r, rand.New(rand.NewPCG(3, 1)), 100_000)
	d, err := ReadDump(bytes.NewReader(dumpOf(t, tr, r)))
	require.NoError(t, err)
	small, err := NewTree(TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, NewSlots())
	require.NoError(t, err)
	var c RankCopy
	require.True(t, d.Copy(r, &c))
	left, err := c.Load(small)
	require.ErrorIs(t, err, ErrUnknownRank)
	require.NotZero(t, left)
	small.Attach(r)
	left, err = c.Load(small)
	require.NoError(t, err)
	st, _ := small.Stats(r)
	require.Positive(t, st.Blocks)
	require.Equal(t, c.Blocks(), st.Blocks+int(st.Shed)+left)
	require.LessOrEqual(t, small.budget.inUse(), 1<<20)
	require.NoError(t, small.Check())
}

func TestAPrefixThatRanksShareIsWrittenOnce(t *testing.T) {
	tr := newTree(t, NewSlots())
	var ranks []worker.Rank
	for i := range 3 {
		r := worker.Rank{ID: worker.ID(i + 1)}
		ranks = append(ranks, r)
		tr.Attach(r)
		blocks := seqRun(1, 2_000+100*i)
		require.NoError(t, tr.Store(r, Stored{Blocks: blocks[:900]}))
		require.NoError(t, tr.Store(r, Stored{Parent: blocks[899].Engine, HasParent: true, Blocks: blocks[900:]}))
	}
	one, all := len(dumpOf(t, tr, ranks[2])), len(dumpOf(t, tr, ranks...))
	require.Less(t, all-one, (2_000+2_100)*hashBytes+200, "the names of the two others, and little else")
	d, err := ReadDump(bytes.NewReader(dumpOf(t, tr, ranks...)))
	require.NoError(t, err)
	require.Equal(t, 2_200, d.Blocks())
}

// smallDump returns a dump of two ranks that share a block; it has a hole and a second
// tier.
func smallDump(t testing.TB) []byte {
	tr := newTree(t, NewSlots())
	a, b := worker.Rank{ID: 1}, worker.Rank{ID: 300, DPRank: 1}
	tr.Attach(a)
	tr.Attach(b)
	require.NoError(t, tr.Store(a, Stored{Blocks: []Block{{0x11, 1}, {0x12, 2}, {0x13, 3}}}))
	require.NoError(t, tr.Remove(a, Removed{Blocks: []EngineHash{0x12}}))
	require.NoError(t, tr.Store(a, Stored{Parent: 0x11, HasParent: true, Blocks: nil, Tier: Host}))
	require.NoError(t, tr.Store(b, Stored{Blocks: []Block{{0x21, 1}, {0x22, 4}}, Tier: Host}))
	return dumpOf(t, tr, a, b)
}

// Other processes read the form of a dump: if this test changes, so must the version.
func TestTheFormOfADumpStays(t *testing.T) {
	require.Equal(t, "4241544f4e4b5649"+"01"+"d82d7e739c2391c1"+ // magic, version, scheme
		"4e"+"01"+"01"+"03"+"010000000000000002000000000000000300000000000000"+
		"52"+"01"+"00"+"80d095ffbc31"+"03"+hex.EncodeToString([]byte("1/0"))+"02"+
		"01"+"01"+"01"+"1100000000000000"+"02"+"01"+"01"+"1300000000000000"+
		"4e"+"01"+"03"+"01"+"0400000000000000"+
		"52"+"ac02"+"01"+"80d095ffbc31"+"05"+hex.EncodeToString([]byte("300/1"))+"02"+
		"01"+"01"+"02"+"2100000000000000"+"03"+"01"+"02"+"2200000000000000"+
		"45"+"02", hex.EncodeToString(smallDump(t)[:len(smallDump(t))-hashBytes]))
}

// sealed appends the checksum, so that b can pass as a whole dump.
func sealed(b []byte) []byte { return binary.LittleEndian.AppendUint64(b, xxh3.Hash(b)) }

func TestADumpThatIsNotWholeIsRefused(t *testing.T) {
	whole := smallDump(t)
	read := func(b []byte) error {
		_, err := ReadDump(bytes.NewReader(b))
		return err
	}
	require.NoError(t, read(whole))
	for n := range whole {
		require.ErrorIs(t, read(whole[:n]), ErrDump, "cut after %d bytes", n)
		for bit := range 8 {
			b := slices.Clone(whole)
			b[n] ^= 1 << bit
			require.ErrorIs(t, read(b), ErrDump, "bit %d of byte %d", bit, n)
		}
	}
	require.ErrorIs(t, read(append(slices.Clone(whole), 0)), ErrDump)
	body := whole[:len(whole)-hashBytes]
	head := body[:len(dumpMagic)+1+hashBytes]
	change := func(at int, v byte) []byte {
		b := slices.Clone(body)
		b[at] = v
		return sealed(b)
	}
	with := func(s string) []byte {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		return sealed(append(slices.Clone(head), b...))
	}
	for want, b := range map[string][]byte{
		"cut short after 0 bytes":          {},
		"cut short after 5 bytes":          whole[:5],
		"cut short after 20 bytes":         whole[:20],
		"cut short or damaged: ":           whole[:len(whole)-1],
		`it begins with "PK\x03\x04": `:    []byte("PK\x03\x04"),
		"version 2: expected 1":            change(8, 2),
		"blocks are hashed in another":     change(9, 0),
		`part '\x00': expected 'N', 'R'`:   with("00"),
		"an end after 0 ranks with 0 byt":  with("4501"),
		"an end after 0 ranks with 1 byt":  with("450045"),
		"expected a number":                with("4e"),
		"0 bytes are left: expected 1":     with(""),
		"a run of 0 blocks, its parent 1":  with("4e010100"),
		"a run of 1 blocks, its parent 0":  with("4e010001" + "0100000000000000"),
		"number 2: expected at most 1":     with("4e010201" + "0100000000000000"),
		"number 9: expected at most 1":     with("4e010109" + "0100000000000000"),
		"rank 1/0 a second time":           with("52010000000052010000000045"),
		"1 names from block 1 on, tiers ":  with("4e01010101000000000000005201000000010101001100000000000000"),
		"1 names from block 1 on, tiers 1": with("4e0101010100000000000000520100000001010110" + "1100000000000000"),
		"1 names from block 0 on":          with("4e0101010100000000000000520100000001000101" + "1100000000000000"),
		"2 names from block 1 on":          with("4e0101010100000000000000520100000002010201" + "11000000000000001200000000000000"),
		"0 names from block 1 on":          with("4e0101010100000000000000520100000001010001" + "1100000000000000"),
	} {
		err := read(b)
		require.ErrorIs(t, err, ErrDump, want)
		require.ErrorContains(t, err, want)
	}
	_, err := ReadDump(failing{})
	require.ErrorIs(t, err, errDisk)
}

var errDisk = errors.New("disk")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errDisk }

func (failing) Write([]byte) (int, error) { return 0, errDisk }

func TestADumpThatCannotBeWrittenSaysSo(t *testing.T) {
	w := NewDumpWriter(failing{})
	var c RankCopy
	c.begin(worker.Rank{ID: 1})
	require.NoError(t, w.Add(&c, dumpTime, nil), "it is in the buffer still")
	require.ErrorIs(t, w.Close(), errDisk)
	require.ErrorIs(t, w.Add(&c, dumpTime, nil), errDisk)
}

func TestARankThatIsNotThereIsNotCopied(t *testing.T) {
	tr := newTree(t, NewSlots())
	var c RankCopy
	require.ErrorIs(t, tr.Copy(worker.Rank{ID: 1}, &c), ErrUnknownRank)
	d, err := ReadDump(bytes.NewReader(smallDump(t)))
	require.NoError(t, err)
	require.False(t, d.Copy(worker.Rank{ID: 1, DPRank: 1}, &c))
}

// TestACopyOfARankThatIsClearedOrLeavesIsGivenUpOrWhole: also, the next copy has
// nothing left over from it.
func TestACopyOfARankThatIsClearedOrLeavesIsGivenUpOrWhole(t *testing.T) {
	tr := newTree(t, NewSlots())
	mine := worker.Rank{ID: 1}
	rng := rand.New(rand.NewPCG(3, 1))
	tr.Attach(mine)
	chats(t, tr, mine, rng, 12_000)
	var c RankCopy
	c.begin(mine)
	from, more, err := tr.copySome(mine, 0, &c)
	require.NoError(t, err)
	require.True(t, more)
	tr.Detach(mine)
	tr.Attach(mine)
	paths := chats(t, tr, mine, rng, 12_000)
	_, _, err = tr.copySome(mine, from, &c)
	require.ErrorIs(t, err, ErrUnknownRank, "it is another life of the rank")
	require.NoError(t, tr.Copy(mine, &c))
	require.True(t, maps.EqualFunc(paths, c.paths(), slices.Equal))

	if !invariants.Enabled {
		return
	}
	big := seqRun(1_000_000, 3*clearSlice)
	for i := 0; i < len(big); i += 512 {
		require.NoError(t, tr.Store(mine, Stored{Blocks: big[i : i+512]}))
	}
	var copies sync.WaitGroup
	times := 0
	tr.gaveUp = func() {
		times++
		copies.Go(func() {
			var c RankCopy
			if err := tr.Copy(mine, &c); err != nil {
				require.ErrorIs(t, err, ErrUnknownRank)
				return
			}
			require.Zero(t, c.Blocks(), "what is being cleared is gone for whoever asks")
		})
		for range 100 {
			runtime.Gosched()
		}
	}
	require.NoError(t, tr.Clear(mine))
	copies.Wait()
	require.Greater(t, times, 3)
	tr.Detach(mine)
	copies.Wait()
	tr.gaveUp = nil
	require.NoError(t, tr.Check())
}
