package kvevents

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// In a block's keys vLLM writes the adapter's name, then (name, offset) for each picture,
// then in a prompt's first block the salt; see test/enginesim/testdata/captures.
// TestAHashOfSeveralAdaptersIsNoConflict: an engine may make its hashes of tokens alone.
func TestAHashOfSeveralAdaptersIsNoConflict(t *testing.T) {
	w := newZMQWorker(t, 0, 0)
	r := newRig(t, nil)
	r.follow(w.source())
	of := func(hash int, parent, adapter, salt any, token int) {
		w.publish(store(event{"block_hashes": []int{hash}, "parent_block_hash": parent, "lora_name": adapter, "cache_salt": salt, "token_ids": []int{token, token}}), false)
	}
	refused := func(n uint64) func() bool {
		return func() bool { s := r.status(one); return s.Refused[AmbiguousSalt]+s.Refused[HashConflict] == n }
	}
	of(1, nil, nil, nil, 1)
	of(1, nil, nil, nil, 2)
	r.eventually("a conflict", refused(1))
	require.Equal(t, map[string]uint64{"hash_conflict": 1}, r.status(one).Missing.Map(), "of one space")
	w.publish(event{"type": "AllBlocksCleared"}, false)
	of(1, nil, "a", nil, 1)
	of(1, nil, "b", nil, 1)
	of(1, nil, "a", nil, 1) // once more
	of(2, 1, "a", nil, 2)
	of(2, 1, "b", nil, 2)
	r.eventually("left out", refused(3))
	require.Empty(t, r.status(one).Missing.Map())
	require.Equal(t, 2, r.status(one).LeftOut)
	require.Equal(t, 2, r.status(one).Blocks)
	of(1, nil, "b", "s", 1)
	r.eventually("left out", refused(4))
	of(3, 1, "a", nil, 3)
	r.eventually("which of them it follows is not known", refused(5))
	require.Equal(t, 3, r.status(one).LeftOut)
	w.publish(removal(event{"block_hashes": []int{1, 2, 3}}), false)
	r.eventually("removed", func() bool { s := r.status(one); return s.LeftOut == 0 && s.Blocks == 0 })
	require.Empty(t, r.status(one).Missing.Map())
}

func TestTheSaltOfAStockVLLMIsReadFromTheFirstBlock(t *testing.T) {
	digest := strings.Repeat("5e", 32) // a salt may look like a picture's name if it was hashed
	first := []int{1, 2}
	for name, c := range map[string]struct {
		adapter any
		keys    []any // of the first block
		parent  any
		want    kvindex.Salt
		behind  []uint64 // hashed after the tokens
		out     bool
	}{
		"a salt":                                     {keys: []any{"a"}, want: kvindex.Salt{CacheSalt: "a"}},
		"a salt that is a digest":                    {keys: []any{digest}, want: kvindex.Salt{CacheSalt: digest}},
		"an adapter":                                 {adapter: "ada", keys: []any{"ada"}, want: kvindex.Salt{LoRA: "ada"}},
		"an adapter and a salt":                      {adapter: "ada", keys: []any{"ada", "a"}, want: kvindex.Salt{LoRA: "ada", CacheSalt: "a"}},
		"a salt that has the adapter's name":         {adapter: "ada", keys: []any{"ada", "ada"}, want: kvindex.Salt{LoRA: "ada", CacheSalt: "ada"}},
		"an adapter's name without an adapter":       {keys: []any{"ada"}, want: kvindex.Salt{CacheSalt: "ada"}},
		"a picture":                                  {keys: []any{[]any{digest, 1}}, behind: []uint64{0x5e5e5e5e5e5e5e5e, 1}},
		"a picture and a salt":                       {keys: []any{[]any{digest, 1}, "a"}, want: kvindex.Salt{CacheSalt: "a"}, behind: []uint64{0x5e5e5e5e5e5e5e5e, 1}},
		"a picture and bytes":                        {keys: []any{[]any{digest, 1}, []byte("0123456789")}, out: true},
		"a picture named as old versions do, a salt": {keys: []any{digest, "a"}, out: true},
		"bytes, as of prompt embeddings":             {keys: []any{[]byte("0123456789")}, out: true},
		"a salt and bytes":                           {keys: []any{"a", []byte("0123456789")}, out: true},
		"a bare text in a later block":               {keys: []any{"a"}, parent: 7, out: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDecoder(2, 0, false)
			more := event{"extra_keys": []any{c.keys}, "parent_block_hash": c.parent, "token_ids": first}
			if c.adapter != nil {
				more["lora_id"], more["lora_name"] = 1, c.adapter
			}
			b, err := d.Decode(payload(t, 0, store(more)))
			require.NoError(t, err)
			if c.out {
				require.Empty(t, b.Events)
				require.Equal(t, map[string]uint64{"extra_keys": 1}, b.Refused.Map())
				require.Equal(t, 1, d.LeftOut())
				return
			}
			require.Empty(t, b.Refused.Map())
			require.Equal(t, hashBytes(c.want.Seed(), []uint32{1, 2}, c.behind...), b.Events[0].Stored.Blocks[0].Local)
			require.Zero(t, d.LeftOut())
		})
	}
}

func TestWhatFollowsABlockThatIsLeftOutIsLeftOutAsLongAsTheEngineHasIt(t *testing.T) {
	d := NewDecoder(2, 0, false)
	put := func(hash int, parent any, keys any) string {
		return outcome(t, d, store(event{"block_hashes": []int{hash}, "parent_block_hash": parent, "extra_keys": keys}))
	}
	gone := func(hashes ...int) { outcome(t, d, removal(event{"block_hashes": hashes})) }
	embeds := []any{[]any{[]byte("of embeddings")}}
	require.Equal(t, "device", put(1, nil, nil))
	require.Equal(t, "extra_keys", put(2, 1, embeds))
	require.Equal(t, "extra_keys", put(3, 2, nil), "its parent is in no index")
	require.Equal(t, "extra_keys", put(3, 2, nil))
	require.Equal(t, "device", put(4, 1, nil), "its neighbour is not concerned")
	require.Equal(t, 2, d.LeftOut())
	gone(3)
	require.Equal(t, 1, d.LeftOut())
	gone(2, 4)
	require.Zero(t, d.LeftOut())
	require.Equal(t, "device", put(2, 1, nil), "the name is free again")

	require.Equal(t, "extra_keys", put(5, 1, embeds))
	outcome(t, d, event{"type": "AllBlocksCleared"})
	require.Zero(t, d.LeftOut())

	// The same is true of blocks that follow a block with two salts.
	for _, salt := range []string{"a", "b"} {
		outcome(t, d, store(event{"block_hashes": []int{6}, "parent_block_hash": nil, "cache_salt": salt}))
	}
	require.Equal(t, "ambiguous_salt", put(7, 6, nil))
	require.Equal(t, "ambiguous_salt", put(8, 7, nil))
	require.Equal(t, 3, d.LeftOut(), "of the two blocks that the hash names the index has one")
}

func TestWhatIsLeftOutOutlivesARestartOfThisProcess(t *testing.T) {
	d := NewDecoder(2, 0, false)
	outcome(t, d, store(event{"block_hashes": []int{2}, "extra_keys": []any{[]any{[]byte("of embeddings")}}}))
	next := NewDecoder(2, 0, false)
	next.resume(d.learnt())
	require.Equal(t, 1, next.LeftOut())
	require.Equal(t, "extra_keys", outcome(t, next, store(event{"block_hashes": []int{3}, "parent_block_hash": 2})))
}

func TestWhatIsKnownOfSaltedBlocksLivesWithinABudget(t *testing.T) {
	d := NewDecoder(2, 0, false)
	taken, most := 0, 3*leastSpaces*spaceBytes
	d.Budget(func(n int) bool {
		if n > 0 && taken+n > most {
			return false
		}
		taken += n
		return true
	})
	put := func(hash int) string {
		return outcome(t, d, store(event{"block_hashes": []int{hash}, "parent_block_hash": nil, "cache_salt": strings.Repeat("s", 10_000)}))
	}
	held := 0
	for put(held+1) == "device" {
		held++
	}
	require.Equal(t, "no_room", put(held+1))
	require.Equal(t, 3*leastSpaces, held)
	require.Equal(t, most, taken)
	require.Equal(t, "device", outcome(t, d, store(event{"block_hashes": []int{held + 1}, "parent_block_hash": nil})), "plain blocks need none")
	for h := 1; h < held; h++ {
		outcome(t, d, removal(event{"block_hashes": []int{h}}))
	}
	require.Less(t, taken, most+1)
	require.Equal(t, "device", put(1), "what is gone has made room")
	outcome(t, d, event{"type": "AllBlocksCleared"})
	require.Zero(t, taken)
}

// A request whose blocks cannot be read costs those blocks only.
func TestABlockThatCannotBeReadDegradesNoRank(t *testing.T) {
	w := newZMQWorker(t, 0, 0)
	r := newRig(t, nil)
	r.follow(w.source())
	r.eventually("connected", func() bool { return r.status(one).Seen || r.status(one).State == StateConnected })
	w.store(1, false)
	w.publish(store(event{"block_hashes": []int{2}, "parent_block_hash": 1, "extra_keys": []any{[]any{[]byte("of embeddings")}}}), false)
	w.publish(store(event{"block_hashes": []int{3}, "parent_block_hash": 2}), false)
	w.store(4, false)
	r.eventually("all heard", func() bool { return r.holds(one, map[int]bool{1: true, 4: true}) })
	s := r.status(one)
	require.Equal(t, StateConnected, s.State)
	require.Equal(t, 2, s.LeftOut)
	require.Zero(t, s.Missing)
	require.Equal(t, map[string]uint64{"extra_keys": 2}, s.Refused.Map())
	w.publish(removal(event{"block_hashes": []int{3, 2}}), false)
	r.eventually("healed", func() bool { return r.status(one).LeftOut == 0 })
}

func TestTheIndexsBudgetCoversSaltsUntilTheirRankLeaves(t *testing.T) {
	tree, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: kvindex.LeastBytes}, kvindex.NewSlots())
	require.NoError(t, err)
	eighth := kvindex.LeastBytes / 8
	w := newZMQWorker(t, 0, 0)
	r := newRig(t, func(c *Config) { c.Index = tree })
	r.follow(w.source())
	for n := range 3 * leastSpaces {
		w.publish(store(event{"block_hashes": []int{n}, "parent_block_hash": nil, "token_ids": []int{n, n}, "cache_salt": "s"}), false)
	}
	r.eventually("all heard", func() bool { return r.status(one).LastSeq == 3*leastSpaces-1 })
	left := eighth - 3*leastSpaces*spaceBytes
	require.False(t, tree.Reserve(left+1))
	require.True(t, tree.Reserve(left))
	tree.Reserve(-left)
	r.follow()
	r.eventually("left", func() bool { _, ok := tree.Slot(worker.Rank{ID: 1}); return !ok })
	require.True(t, tree.Reserve(eighth))
	require.False(t, tree.Reserve(1))
}

// TestABlockOfTwoSaltsIsAmbiguousHoweverLittleMemoryIsLeft: what is noted of it is there.
func TestABlockOfTwoSaltsIsAmbiguousHoweverLittleMemoryIsLeft(t *testing.T) {
	t.Parallel()
	given := false
	s := spaces{reserve: func(int) bool { first := !given; given = true; return first }}
	full := make([]kvindex.EngineHash, leastSpaces)
	for i := range full {
		full[i] = kvindex.EngineHash(i + 1)
	}
	require.True(t, s.note(full, space{seed: 7}, 0))
	require.False(t, s.note([]kvindex.EngineHash{1000}, space{seed: 7}, 0), "there is no room for one more")
	s.noteBare(full[:1], 0, 0)
	require.Equal(t, ambiguous, s.blocks[full[0]].kind)
}
