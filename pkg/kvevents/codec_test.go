package kvevents

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/zeebo/xxh3"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Payloads as the engines' own encoder wrote them.
const (
	vllmStoredMap   = "93cb41d954fc4020000091de0009a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf1122334455667788cffedcba9876543210b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473940102cd012cce00011170aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a967726f75705f6964780000"
	vllmStoredArray = "93cb41d954fc4020000091dc0010ab426c6f636b53746f72656492cf1122334455667788cffedcba9876543210c0940102cd012cce0001117002c0a3475055c0c000c0c0c0c0c0c000"
	vllmRemovedMap  = "93cb41d954fc402000009184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf1122334455667788a66d656469756da3475055a967726f75705f6964780000"
	vllmRemovedArr  = "93cb41d954fc402000009194ac426c6f636b52656d6f76656491cf1122334455667788a34750550000"
	vllmClearedMap  = "93cb41d954fc402000009181a474797065b0416c6c426c6f636b73436c656172656403"
	vllmClearedArr  = "93cb41d954fc402000009191b0416c6c426c6f636b73436c656172656403"
	vllmBytesMap    = "93cb41d954fc4020000091de0008a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391c4202d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c000"
	sglangSigned    = "93cb41d954fc4020000091" + "87a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392fbcf4000000000000000b1706172656e745f626c6f636b5f68617368f9a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da347505500"
	dynamoVector    = "93cb41d954fc402000009399ab426c6f636b53746f726564926fccdec0dc0020000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f10c0a3475055c0c093ac426c6f636b52656d6f766564916fa347505591b0416c6c426c6f636b73436c656172656400"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func locals(bs int, salt kvindex.Salt, tokens ...uint32) []kvindex.LocalHash {
	return kvindex.AppendLocalHashes(nil, tokens, bs, salt.Seed())
}

// decodeOne decodes a payload that must give one event and no refusal.
func decodeOne(t *testing.T, d *Decoder, payload []byte) Event {
	t.Helper()
	b, err := d.Decode(payload)
	require.NoError(t, err)
	require.Empty(t, b.Refused.Map())
	require.Len(t, b.Events, 1)
	return b.Events[0]
}

func TestLiteralSamplesDecode(t *testing.T) {
	two := locals(2, kvindex.Salt{}, 1, 2, 300, 70000)
	stored := Event{Kind: Stored, Stored: kvindex.Stored{Blocks: []kvindex.Block{
		{Engine: 0x1122334455667788, Local: two[0]}, {Engine: 0xfedcba9876543210, Local: two[1]},
	}}}
	removed := Event{Kind: Removed, Removed: kvindex.Removed{Blocks: []kvindex.EngineHash{0x1122334455667788}}}
	for name, c := range map[string]struct {
		payload string
		rank    uint32
		want    Event
	}{
		"a vLLM store as a map":         {vllmStoredMap, 0, stored},
		"a vLLM store as an array":      {vllmStoredArray, 0, stored},
		"a vLLM removal as a map":       {vllmRemovedMap, 0, removed},
		"a vLLM removal as an array":    {vllmRemovedArr, 0, removed},
		"a vLLM clear as a map":         {vllmClearedMap, 3, Event{Kind: Cleared}},
		"a vLLM clear as an array":      {vllmClearedArr, 3, Event{Kind: Cleared}},
		"a vLLM store with byte hashes": {vllmBytesMap, 0, Event{Kind: Stored, Stored: kvindex.Stored{Blocks: []kvindex.Block{{Engine: 0x02258717921a4881, Local: two[0]}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDecoder(2, 0, false)
			if c.rank != 0 {
				d = NewDecoder(2, 3, false)
			}
			require.Equal(t, c.want, decodeOne(t, d, unhex(t, c.payload)))
		})
	}
	t.Run("Dynamo's vector of a store, a removal and a clear", func(t *testing.T) {
		b, err := NewDecoder(16, 0, false).Decode(unhex(t, dynamoVector))
		require.NoError(t, err)
		require.Empty(t, b.Refused.Map())
		require.Equal(t, []Event{
			{Kind: Stored, Stored: kvindex.Stored{Blocks: []kvindex.Block{
				{Engine: 0x6f, Local: 15310707395893867146}, {Engine: 0xde, Local: 15292316782987903195},
			}}},
			{Kind: Removed, Removed: kvindex.Removed{Blocks: []kvindex.EngineHash{0x6f}}},
			{Kind: Cleared},
		}, b.Events)
	})
	t.Run("an SGLang store with signed hashes", func(t *testing.T) {
		// The sample names two hashes and the tokens of one block. With blocks of one
		// token the store is whole.
		b := unhex(t, sglangSigned)
		r := reader{b: b}
		r.array()
		r.skip()
		r.array()
		f, _, ok := readFields(r.value())
		require.True(t, ok)
		hashes, ok := appendHashes(nil, f.hashes)
		require.True(t, ok)
		require.Equal(t, []kvindex.EngineHash{0xfffffffffffffffb, 0x4000000000000000}, hashes)
		batch, err := NewDecoder(2, 0, false).Decode(b)
		require.NoError(t, err)
		require.Equal(t, map[string]uint64{"token_count": 1}, batch.Refused.Map())
	})
}

// fields of an event in map form, in no particular order.
type event map[string]any

func store(more event) event {
	e := event{
		"type": "BlockStored", "block_hashes": []int64{-5}, "parent_block_hash": int64(-7),
		"token_ids": []uint32{1, 2}, "block_size": 2, "lora_id": nil, "medium": "GPU",
	}
	maps.Copy(e, more)
	return e
}

func removal(more event) event {
	e := event{"type": "BlockRemoved", "block_hashes": []int64{-5}, "medium": "GPU"}
	maps.Copy(e, more)
	return e
}

func payload(t testing.TB, rank any, events ...any) []byte {
	t.Helper()
	b, err := msgpack.Marshal([]any{1700000000.5, events, rank})
	require.NoError(t, err)
	return b
}

// outcome says in one word what became of one event.
func outcome(t *testing.T, d *Decoder, e any) string {
	t.Helper()
	b, err := d.Decode(payload(t, 0, e))
	require.NoError(t, err)
	for reason := range b.Refused.Map() {
		require.LessOrEqual(t, len(b.Refused.Map()), 1)
		return reason
	}
	require.Len(t, b.Events, 1)
	if b.Events[0].Kind == Removed {
		return b.Events[0].Removed.Tier.String()
	}
	return b.Events[0].Stored.Tier.String()
}

func TestEachEventIsUsedOrRefusedWithItsReason(t *testing.T) {
	arr := func(more ...any) []any {
		return append([]any{"BlockStored", []int64{-5}, int64(-7), []uint32{1, 2}, 2}, more...)
	}
	for name, c := range map[string]struct {
		event any
		want  string
	}{
		"no medium is the device":                     {store(event{"medium": nil}), "device"},
		"an empty medium is the device":               {store(event{"medium": ""}), "device"},
		"DEVICE is the device":                        {store(event{"medium": "DEVICE"}), "device"},
		"pinned memory is the host":                   {store(event{"medium": "CPU_PINNED"}), "host"},
		"CPU is the host":                             {removal(event{"medium": "CPU"}), "host"},
		"DISK is the disk":                            {removal(event{"medium": "DISK"}), "disk"},
		"vLLM's STORAGE is the disk":                  {store(event{"medium": "STORAGE"}), "disk"},
		"EXTERNAL is external":                        {store(event{"medium": "EXTERNAL"}), "external"},
		"a medium of no tier":                         {store(event{"medium": "FS"}), "unknown_medium"},
		"another block size":                          {store(event{"block_size": 4, "token_ids": []int{1, 2, 3, 4}}), "block_size_mismatch"},
		"a smaller block size before any whole block": {store(event{"block_size": 1, "token_ids": []int{1}}), "partial_block"},
		"several smaller blocks before any whole one": {store(event{"block_hashes": []int{1, 2}, "block_size": 1, "token_ids": []int{1, 2}}), "block_size_mismatch"},
		"too few tokens":                              {store(event{"token_ids": []int{1}}), "token_count"},
		"too many tokens":                             {store(event{"token_ids": []int{1, 2, 3}}), "token_count"},
		"a negative token":                            {store(event{"token_ids": []int{1, -2}}), "malformed"},
		"a token beyond 32 bits":                      {store(event{"token_ids": []int64{1, 1 << 32}}), "extra_keys"},
		"pairs of tokens, unannounced":                {store(event{"token_ids": [][]int{{10, 11}, {11, 12}}}), "eagle_mismatch"},
		"pairs that do not follow each other":         {store(event{"token_ids": [][]int{{10, 11}, {12, 13}}}), "malformed"},
		"a pair of three":                             {store(event{"token_ids": [][]int{{10, 11, 12}, {11, 12, 13}}}), "malformed"},
		"an event to be ignored":                      {event{"type": "Ignored"}, "ignored"},
		"an array to be ignored":                      {[]any{"Ignored"}, "ignored"},
		"a clear of another owner":                    {event{"type": "AllBlocksCleared", "ownership": "kvcr"}, "foreign_owner"},
		"an array that clears another owner's":        {[]any{"AllBlocksCleared", "kvcr"}, "foreign_owner"},
		"a picture called as the adapter":             {store(event{"lora_name": "a", "extra_keys": [][]any{{[]any{"a", 3}}}}), "device"},
		"a picture":                                   {store(event{"extra_keys": [][]any{{[]any{"image", 3}}}}), "device"},
		"a picture without a name":                    {store(event{"extra_keys": [][]any{{[]any{"", 3}}}}), "extra_keys"},
		"a picture without a place":                   {store(event{"extra_keys": [][]any{{[]any{"image"}}}}), "extra_keys"},
		"a picture at no whole place":                 {store(event{"extra_keys": [][]any{{[]any{"image", 1.5}}}}), "extra_keys"},
		"a picture whose name is a number":            {store(event{"extra_keys": [][]any{{[]any{7, 3}}}}), "extra_keys"},
		"a picture of three values":                   {store(event{"extra_keys": [][]any{{[]any{"mm", "image", 3}}}}), "extra_keys"},
		"as many pictures as tokens":                  {store(event{"extra_keys": [][]any{{[]any{"a", 0}, []any{"b", 1}}}}), "device"},
		"more pictures than tokens":                   {store(event{"extra_keys": [][]any{{[]any{"a", 0}, []any{"b", 1}, []any{"c", 1}}}}), "extra_keys"},
		"the bytes of a prompt's embeddings":          {store(event{"extra_keys": [][]any{{[]byte("embeds")}}}), "extra_keys"},
		"a key that is a number":                      {store(event{"extra_keys": [][]any{{7}}}), "extra_keys"},
		"a digest for a key":                          {store(event{"extra_keys": [][]string{{strings.Repeat("ab", 32)}}}), "extra_keys"},
		"multimodal infos that are no array":          {store(event{"block_mm_infos": 3}), "malformed"},
		"a remote block":                              {store(event{"locality": "REMOTE"}), "remote_locality"},
		"a remote block on another tier":              {removal(event{"locality": "REMOTE", "medium": "CPU"}), "remote_locality"},
		"a local block":                               {store(event{"locality": "LOCAL"}), "device"},
		"blocks of another owner":                     {store(event{"ownership": "kvcr"}), "foreign_owner"},
		// vLLM 0.32.0: offloading/events.py _placeholder_stored, simple_kv_offload/manager.py,
		// mooncake/store/worker.py, lmcache_connector.py.
		"a block that an offloading connector only names": {store(event{"medium": "CPU", "block_size": 0, "token_ids": []int{}}), "foreign_owner"},
		"a block on the host without its tokens":          {store(event{"medium": "CPU", "token_ids": []int{}}), "foreign_owner"},
		"a chunk of a store that has its own block size":  {store(event{"medium": "cpu", "block_size": 256}), "foreign_owner"},
		"a block of Mooncake's store":                     {store(event{"medium": "cpu"}), "host"},
		"a block on the device without its tokens":        {store(event{"token_ids": []int{}}), "token_count"},
		"a block on the device with another block size":   {store(event{"block_size": 4}), "block_size_mismatch"},
		"blocks of the worker's own":                      {store(event{"ownership": "worker"}), "device"},
		"blocks of the worker's own, in capitals":         {store(event{"ownership": "WORKER"}), "device"},
		"a group that was never named":                    {store(event{"group_idx": 1}), "foreign_group"},
		"a removal from a group that was never named":     {removal(event{"group_idx": 1}), "foreign_group"},
		"a group of sliding windows":                      {store(event{"kv_cache_spec_kind": "sliding_window"}), "foreign_group"},
		"a group of encoders":                             {store(event{"kv_cache_spec_kind": "cross_attention"}), "foreign_group"},
		"the first group, of an unknown kind":             {store(event{"kv_cache_spec_kind": "unknown"}), "device"},
		"the first group, of a kind of tomorrow":          {store(event{"kv_cache_spec_kind": "of_tomorrow"}), "device"},
		"a later group of a kind of tomorrow":             {store(event{"group_idx": 1, "kv_cache_spec_kind": "of_tomorrow"}), "foreign_group"},
		"another group of full attention":                 {store(event{"group_idx": 1, "kv_cache_spec_kind": "full_attention"}), "device"},
		"an adapter without a name":                       {store(event{"lora_id": 3}), "unnamed_adapter"},
		"an adapter with a name":                          {store(event{"lora_id": 3, "lora_name": "a"}), "device"},
		"a later block with keys of its own":              {store(event{"parent_block_hash": 9, "extra_keys": [][]string{{"image"}}}), "extra_keys"},
		"keys that are the adapter's name":                {store(event{"lora_name": "a", "extra_keys": [][]string{{"a"}}}), "device"},
		"keys that are absent for each block":             {store(event{"extra_keys": []any{nil}}), "device"},
		"keys that are no array":                          {store(event{"extra_keys": "image"}), "malformed"},
		"an event of a later kind":                        {event{"type": "BlockMoved"}, "unknown_event"},
		"an event without a tag":                          {event{"block_hashes": []int{1}}, "unknown_event"},
		"a store without hashes":                          {store(event{"block_hashes": nil}), "malformed"},
		"a store without tokens":                          {store(event{"token_ids": nil}), "malformed"},
		"a store without a block size":                    {store(event{"block_size": nil}), "block_size_mismatch"},
		"a hash of seven bytes":                           {store(event{"block_hashes": [][]byte{make([]byte, 7)}}), "malformed"},
		"a hash that is text":                             {removal(event{"block_hashes": []string{"x"}}), "malformed"},
		"an event that is a number":                       {17, "malformed"},
		"an empty array":                                  {[]any{}, "malformed"},
		"fields of later versions":                        {store(event{"session_id": "s", "lookahead_token_ids": []int{4}}), "device"},
		"the shortest array":                              {arr(), "device"},
		"SGLang's array with a salt":                      {arr(nil, "GPU", map[string]any{"cache_salt": "s"}), "device"},
		"SGLang's array with an empty map for a salt":     {arr(nil, "GPU", map[string]any{}), "malformed"},
		"SGLang's array with a salt that is a number":     {arr(nil, "GPU", map[string]any{"cache_salt": 1}), "malformed"},
		"vLLM's array with a window group":                {arr(nil, "GPU", nil, nil, 0, "sliding_window", 128), "foreign_group"},
		"vLLM's array with a remote block":                {arr(nil, "GPU", nil, nil, 0, "full_attention", nil, "REMOTE"), "remote_locality"},
		"vLLM's array removal with a remote block":        {[]any{"BlockRemoved", []int{1}, "GPU", 0, "REMOTE"}, "remote_locality"},
		"the shortest array removal":                      {[]any{"BlockRemoved", []int{1}}, "device"},
		"metadata that is about something else":           {store(event{"metadata": map[string]any{"x": 1}}), "device"},
		"a field of the wrong kind":                       {store(event{"medium": 3}), "malformed"},
		"hashes that are no array":                        {store(event{"block_hashes": 3}), "malformed"},
		"a parent that is text":                           {store(event{"parent_block_hash": "p"}), "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, outcome(t, NewDecoder(2, 0, false), c.event))
		})
	}
}

func TestSaltAndAdapterSeedTheHashes(t *testing.T) {
	for name, c := range map[string]struct {
		more event
		salt kvindex.Salt
	}{
		"nothing":                     {nil, kvindex.Salt{}},
		"an adapter":                  {event{"lora_name": "adapter-a"}, kvindex.Salt{LoRA: "adapter-a"}},
		"SGLang's cache salt":         {event{"cache_salt": "tenant-a"}, kvindex.Salt{CacheSalt: "tenant-a"}},
		"a cache salt in metadata":    {event{"metadata": map[string]any{"cache_salt": "t"}}, kvindex.Salt{CacheSalt: "t"}},
		"both":                        {event{"lora_name": "a", "cache_salt": "t"}, kvindex.Salt{LoRA: "a", CacheSalt: "t"}},
		"a salt among the extra keys": {event{"extra_keys": [][]string{{"dynamo-cache-salt:t"}}}, kvindex.Salt{CacheSalt: "t"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := decodeOne(t, NewDecoder(2, 0, false), payload(t, 0, store(c.more)))
			require.Equal(t, kvindex.Stored{
				Parent: kvindex.EngineHash(0xfffffffffffffff9), HasParent: true,
				Blocks: []kvindex.Block{{Engine: 0xfffffffffffffffb, Local: locals(2, c.salt, 1, 2)[0]}},
			}, e.Stored)
		})
	}
}

// In the form of vLLM 0.32. The blocks behind the first take the salt from their parent.
func TestABareKeyOfAPromptsFirstBlockIsItsSalt(t *testing.T) {
	for name, c := range map[string]struct {
		keys []string
		more event
		salt kvindex.Salt
	}{
		"alone":                     {[]string{"t"}, nil, kvindex.Salt{CacheSalt: "t"}},
		"behind the adapter's name": {[]string{"a", "t"}, event{"lora_name": "a"}, kvindex.Salt{LoRA: "a", CacheSalt: "t"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDecoder(2, 0, false)
			first := event{"parent_block_hash": nil, "extra_keys": []any{c.keys}}
			maps.Copy(first, c.more)
			want := locals(2, c.salt, 1, 2)[0]
			require.Equal(t, want, decodeOne(t, d, payload(t, 0, store(first))).Stored.Blocks[0].Local)
			behind := event{"parent_block_hash": int64(-5), "block_hashes": []int64{-6}}
			maps.Copy(behind, c.more)
			require.Equal(t, want, decodeOne(t, d, payload(t, 0, store(behind))).Stored.Blocks[0].Local)
		})
	}
}

// hashBytes computes a local hash by its formula, independently of the product.
func hashBytes(seed uint64, tokens []uint32, objects ...uint64) kvindex.LocalHash {
	var b []byte
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	for _, o := range objects {
		b = binary.LittleEndian.AppendUint64(b, o)
	}
	return kvindex.LocalHash(xxh3.HashSeed(b, seed))
}

func TestPairsAreHashedOverAWindowOfOneTokenMore(t *testing.T) {
	d := NewDecoder(2, 0, true)
	e := decodeOne(t, d, payload(t, 0, store(event{
		"block_hashes": []int{1, 2}, "parent_block_hash": nil, "cache_salt": "t",
		"token_ids": [][]int{{10, 11}, {11, 12}, {12, 13}, {13, 14}},
	})))
	seed := kvindex.Salt{CacheSalt: "t"}.Seed()
	require.Equal(t, []kvindex.Block{
		{Engine: 1, Local: hashBytes(seed, []uint32{10, 11, 12})},
		{Engine: 2, Local: hashBytes(seed, []uint32{12, 13, 14})},
	}, e.Stored.Blocks)
}

func TestBlocksThatAreNotAsTheWorkerIsRegisteredAreRefused(t *testing.T) {
	plain, eagle := NewDecoder(2, 0, false), NewDecoder(2, 0, true)
	pairs := store(event{"token_ids": [][]int{{10, 11}, {11, 12}}})
	require.Equal(t, "eagle_mismatch", outcome(t, plain, pairs))
	require.Equal(t, "device", outcome(t, eagle, pairs))
	require.Equal(t, "token_count", outcome(t, eagle, store(event{"token_ids": [][]int{{10, 11}}})))
	require.Equal(t, "eagle_mismatch", outcome(t, eagle, store(nil)))
	require.Equal(t, "device", outcome(t, plain, store(nil)))
	require.Equal(t, "device", outcome(t, eagle, store(event{"block_hashes": []int{}, "token_ids": []int{}})), "no block is of no kind")
	// Neither event teaches the decoder anything about the blocks that it names.
	salted := store(event{"cache_salt": "t"})
	require.Equal(t, "eagle_mismatch", outcome(t, eagle, salted))
	require.Empty(t, eagle.spaces.blocks)
	require.Equal(t, "device", outcome(t, plain, salted))
	require.NotEmpty(t, plain.spaces.blocks)
}

// object writes the hash of a multimodal object as Dynamo's workers pass it.
func object(h uint64) string { return fmt.Sprintf("%016x", h) + strings.Repeat("0", 48) }

func TestMultimodalObjectsAreHashedBehindTheTokensInOrder(t *testing.T) {
	const seed = 1337
	want := []kvindex.LocalHash{
		hashBytes(seed, []uint32{1}), hashBytes(seed, []uint32{2}, 5, 1<<63+9), hashBytes(seed, []uint32{3}),
	}
	base := event{"block_hashes": []int{1, 2, 3}, "token_ids": []int{1, 2, 3}, "block_size": 1}
	info := map[string]any{"later": []int{1}, "mm_objects": []any{
		map[string]any{"mm_hash": uint64(1<<63 + 9), "offsets": [][]int{{0, 1}}}, map[string]any{"mm_hash": 5},
	}}
	for name, more := range map[string]event{
		"as extra keys":            {"extra_keys": []any{nil, []string{object(1<<63 + 9), object(5)}, nil}},
		"as infos":                 {"block_mm_infos": []any{nil, info, nil}},
		"as both":                  {"block_mm_infos": []any{nil, info}, "extra_keys": []any{nil, []string{object(5), object(1<<63 + 9)}}},
		"as both, the infos first": {"block_mm_infos": []any{nil, info}, "extra_keys": []any{[]string{object(7)}, []string{object(8)}}},
	} {
		t.Run(name, func(t *testing.T) {
			e := store(base)
			maps.Copy(e, more)
			got := decodeOne(t, NewDecoder(1, 0, false), payload(t, 0, e)).Stored.Blocks
			require.Len(t, got, 3)
			for i, b := range got {
				require.Equal(t, want[i], b.Local, "block %d", i)
			}
		})
	}
}

// The pictures are in the form in which vLLM tells them.
func TestAPicturesBlocksAreCalledAsARequestsWithIt(t *testing.T) {
	t.Parallel()
	digest := strings.Repeat("0123456789abcdef", 4)
	opaque, _ := kvindex.HashMMIdentifier("a name of the client's")
	tokens := []uint32{1, 9, 9, 9, 9, 9, 8, 8, 3, 4, 5, 6}
	want := kvindex.AppendPictureHashes(nil, tokens, []kvindex.Picture{
		{Hash: 0x0123456789abcdef, Offset: 1, Length: 5}, {Hash: opaque, Offset: 6, Length: 2},
	}, 4, false, kvindex.Salt{LoRA: "a", CacheSalt: "t"}.Seed())
	d := NewDecoder(4, 0, false)
	got := decodeOne(t, d, payload(t, 0, store(event{
		"block_hashes": []int{1, 2, 3}, "parent_block_hash": nil, "token_ids": tokens, "block_size": 4, "lora_id": 1, "lora_name": "a",
		"extra_keys": []any{
			[]any{"a", []any{digest, 1}, "t"},
			[]any{"a", []any{digest, -3}, []any{"a name of the client's", 2}},
			[]string{"a"},
		},
	}))).Stored.Blocks
	require.Len(t, got, 3)
	for i, b := range got {
		require.Equal(t, want[i], b.Local, "block %d", i)
	}
}

// The memory for an event must not grow with the names in it.
func TestABlockOfManyPicturesIsLeftOutAlone(t *testing.T) {
	t.Parallel()
	many := make([]any, 10_000)
	for i := range many {
		many[i] = []any{strings.Repeat("x", 300), i}
	}
	d := NewDecoder(2, 0, false)
	b, err := d.Decode(payload(t, 0, store(event{
		"block_hashes": []int{1, 2}, "token_ids": []int{1, 2, 3, 4}, "extra_keys": []any{[]any{[]any{strings.Repeat("y", 1<<20), 0}}, many},
	})))
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{"extra_keys": 1}, b.Refused.Map())
	require.Len(t, b.Events[0].Stored.Blocks, 1)
	require.LessOrEqual(t, cap(d.keys.keys), 16)
	require.Equal(t, 1, d.LeftOut())
}

// The pads are those of 0.5.23. Blocks behind them are left out, too.
func TestSGLangsIdsOfAPictureLeaveItsBlocksOut(t *testing.T) {
	t.Parallel()
	const pad = 1<<62 + 999_999
	for name, c := range map[string]struct {
		eagle  bool
		tokens any
		kept   int
	}{
		"none":                        {false, []uint64{1, 2, 3, 4, 5, 6}, 3},
		"in the second":               {false, []uint64{1, 2, 3, pad, pad, 6}, 1},
		"in the last":                 {false, []uint64{1, 2, 3, 4, 5, pad}, 2},
		"in the first":                {false, []uint64{pad, 2, 3, 4, 5, 6}, 0},
		"behind the first, of pairs":  {true, [][2]uint64{{1, 2}, {2, pad}, {pad, 4}, {4, 5}, {5, 6}, {6, 7}}, 0},
		"within the second, of pairs": {true, [][2]uint64{{1, 2}, {2, 3}, {3, pad}, {pad, 5}, {5, 6}, {6, 7}}, 1},
		"behind the second, of pairs": {true, [][2]uint64{{1, 2}, {2, 3}, {3, 4}, {4, pad}, {pad, 6}, {6, 7}}, 1},
		"at the very first, of pairs": {true, [][2]uint64{{pad, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 7}}, 0},
		"at the very end, of pairs":   {true, [][2]uint64{{1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, pad}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDecoder(2, 0, c.eagle)
			b, err := d.Decode(payload(t, 0, store(event{"block_hashes": []int{1, 2, 3}, "token_ids": c.tokens})))
			require.NoError(t, err)
			kept := 0
			for _, e := range b.Events {
				kept += len(e.Stored.Blocks)
			}
			require.Equal(t, c.kept, kept)
			require.Equal(t, 3-c.kept, d.LeftOut())
			worst, n := b.Refused.Worst()
			require.Zero(t, n, "%v: the rank is as well as before", worst)
			require.Equal(t, c.kept == 3, outcome(t, d, store(event{"block_hashes": []int{4}, "parent_block_hash": 3, "token_ids": pairsOr(c.eagle)})) == "device")
		})
	}
}

func pairsOr(eagle bool) any {
	if eagle {
		return [][2]int{{7, 8}, {8, 9}}
	}
	return []int{7, 8}
}

func TestASaltIsInheritedFromTheParent(t *testing.T) {
	d := NewDecoder(2, 0, false)
	local := func(salt string) kvindex.LocalHash { return locals(2, kvindex.Salt{CacheSalt: salt}, 1, 2)[0] }
	put := func(hash int, parent any, salt any) kvindex.LocalHash {
		e := decodeOne(t, d, payload(t, 0, store(event{
			"block_hashes": []int{hash}, "parent_block_hash": parent, "cache_salt": salt, "medium": "CPU",
		})))
		return e.Stored.Blocks[0].Local
	}
	require.Equal(t, local("a"), put(1, nil, "a"))
	require.Equal(t, local("a"), put(2, 1, nil))
	require.Equal(t, local("a"), put(3, 2, nil))
	require.Equal(t, local(""), put(4, nil, nil))
	require.Equal(t, local(""), put(5, 4, nil))
	require.Equal(t, local("b"), put(6, 3, "b"), "its own word counts")

	// A block that left one tier is still known if another tier has it.
	require.Equal(t, "device", outcome(t, d, removal(event{"block_hashes": []int{3}})))
	require.Equal(t, local("a"), put(7, 3, nil))
	require.Equal(t, "host", outcome(t, d, removal(event{"block_hashes": []int{3}, "medium": "CPU"})))
	require.Equal(t, local(""), put(8, 3, nil), "nothing is known of the parent")

	// One engine hash was stored under two salts.
	put(2, 1, "c")
	require.Equal(t, "ambiguous_salt", outcome(t, d, store(event{"parent_block_hash": 2})))
	decodeOne(t, d, payload(t, 0, event{"type": "AllBlocksCleared"}))
	require.Empty(t, d.spaces.blocks)
	require.Equal(t, local(""), put(9, 2, nil))
}

func TestKeysAreThoseOfTheirOwnEvent(t *testing.T) {
	d := NewDecoder(2, 0, false)
	local := func(more event) kvindex.LocalHash {
		return decodeOne(t, d, payload(t, 0, store(more))).Stored.Blocks[0].Local
	}
	require.Equal(t, hashBytes(1337, []uint32{1, 2}, 5), local(event{"extra_keys": [][]string{{object(5)}}}))
	require.Equal(t, hashBytes(1337, []uint32{1, 2}, 6), local(event{"extra_keys": [][]string{{object(6)}}}))
	require.Equal(t, hashBytes(1337, []uint32{1, 2}), local(nil))
}

func TestASaltIsReadFromTheFirstBlocksKeysOnly(t *testing.T) {
	b, err := NewDecoder(1, 0, false).Decode(payload(t, 0, store(event{
		"block_hashes": []int{1, 2}, "block_size": 1, "extra_keys": []any{nil, []string{"dynamo-cache-salt:t"}},
	})))
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{"extra_keys": 1}, b.Refused.Map())
	require.Equal(t, []kvindex.Block{{Engine: 1, Local: locals(1, kvindex.Salt{}, 1)[0]}}, b.Events[0].Stored.Blocks)
}

func TestABlockUnderSeveralSaltsStaysAmbiguous(t *testing.T) {
	d := NewDecoder(2, 0, false)
	put := func(hash int, parent, salt any) string {
		return outcome(t, d, store(event{"block_hashes": []int{hash}, "parent_block_hash": parent, "cache_salt": salt}))
	}
	require.Equal(t, "device", put(1, nil, "a"))
	require.Equal(t, "device", put(1, nil, "a"))
	require.Equal(t, "device", put(2, 1, nil), "the same once more is not ambiguous")
	require.Equal(t, "device", put(1, nil, nil))
	require.Equal(t, "ambiguous_salt", put(3, 1, nil), "no salt is another one")
	require.Equal(t, "device", put(1, nil, "a"))
	require.Equal(t, "ambiguous_salt", put(3, 1, nil))
}

func TestASaltIsForgottenWithTheLastTier(t *testing.T) {
	d := NewDecoder(2, 0, false)
	for _, medium := range []string{"GPU", "CPU"} {
		outcome(t, d, store(event{"block_hashes": []int{1}, "parent_block_hash": nil, "cache_salt": "a", "medium": medium}))
	}
	outcome(t, d, removal(event{"block_hashes": []int{1}}))
	require.Len(t, d.spaces.blocks, 1)
	outcome(t, d, removal(event{"block_hashes": []int{1}, "medium": "CPU"}))
	require.Empty(t, d.spaces.blocks)
}

func TestBlocksBeforeOneWithExtraKeysAreKept(t *testing.T) {
	d := NewDecoder(1, 0, false)
	b, err := d.Decode(payload(t, 0, store(event{
		"block_hashes": []int{1, 2, 3}, "token_ids": []int{1, 2, 3}, "block_size": 1,
		"extra_keys": []any{nil, []string{"image"}, nil},
	})))
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{"extra_keys": 1}, b.Refused.Map())
	require.Len(t, b.Events[0].Stored.Blocks, 1)
}

func TestABadEventDoesNotSpoilItsNeighbours(t *testing.T) {
	d := NewDecoder(2, 0, false)
	b, err := d.Decode(payload(t, nil, store(nil), 17, removal(nil), event{"type": "AllBlocksCleared"}))
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{"malformed": 1}, b.Refused.Map())
	require.Equal(t, []Kind{Stored, Removed, Cleared}, []Kind{b.Events[0].Kind, b.Events[1].Kind, b.Events[2].Kind})
}

func TestGroupsAreLearntFromStoresOnly(t *testing.T) {
	d := NewDecoder(2, 0, false)
	require.Equal(t, "foreign_group", outcome(t, d, removal(event{"group_idx": 1, "kv_cache_spec_kind": "full_attention"})))
	require.Equal(t, "foreign_group", outcome(t, d, removal(event{"group_idx": 1})))
	require.Equal(t, "device", outcome(t, d, store(event{"group_idx": 1, "kv_cache_spec_kind": "mla_attention"})))
	require.Equal(t, "device", outcome(t, d, removal(event{"group_idx": 1})))
	require.Equal(t, "foreign_group", outcome(t, d, store(event{"group_idx": 0, "kv_cache_spec_kind": "mamba"})))
	require.Equal(t, "foreign_group", outcome(t, d, removal(nil)))
	d.Reset()
	require.Equal(t, "device", outcome(t, d, removal(nil)))
}

func TestNoMoreThan256GroupsAreLearnt(t *testing.T) {
	d := NewDecoder(2, 0, false)
	for g := range 300 {
		require.Equal(t, "device", outcome(t, d, store(event{"group_idx": g, "kv_cache_spec_kind": "full_attention"})))
	}
	require.Equal(t, "device", outcome(t, d, removal(event{"group_idx": 255})))
	require.Equal(t, "foreign_group", outcome(t, d, removal(event{"group_idx": 256})))
	require.Equal(t, "foreign_group", outcome(t, d, store(event{"group_idx": 255, "kv_cache_spec_kind": "mamba"})))
	require.Equal(t, "foreign_group", outcome(t, d, removal(event{"group_idx": 255})), "one that is known is learnt anew")
}

func TestAShortBlockIsPartialOnceAWholeOneWasSeen(t *testing.T) {
	d := NewDecoder(2, 0, false)
	require.Equal(t, "device", outcome(t, d, store(nil)))
	require.Equal(t, "partial_block", outcome(t, d, store(event{"block_size": 1, "token_ids": []int{1}})))
	require.Equal(t, "block_size_mismatch", outcome(t, d, store(event{"block_size": 4, "token_ids": []int{1, 2, 3, 4}})))
	require.Equal(t, "block_size_mismatch", outcome(t, d, store(event{"block_hashes": []int{1, 2}, "block_size": 1, "token_ids": []int{1, 2}})), "a partial block is the last one")
}

// TestAShortBlockIsOfAnotherSizeOnlyIfOneLikeItFollows: vLLM's first event may be the end of
// a prompt that has no whole block.
func TestAShortBlockIsOfAnotherSizeOnlyIfOneLikeItFollows(t *testing.T) {
	short := func(hash, parent any, size int) event {
		return store(event{"block_hashes": []any{hash}, "parent_block_hash": parent, "block_size": size, "token_ids": make([]int, size)})
	}
	d := NewDecoder(4, 0, false)
	for n := range 100 {
		require.Equal(t, "partial_block", outcome(t, d, short(n+1, nil, 2)), "prompts of two tokens")
	}
	require.Equal(t, "partial_block", outcome(t, d, short(102, 100, 3)), "another size")
	require.Equal(t, "block_size_mismatch", outcome(t, d, short(103, 102, 3)))
	require.Equal(t, "block_size_mismatch", outcome(t, d, short(104, 103, 3)))
	require.Equal(t, "device", outcome(t, d, short(1, nil, 4)))
	require.Equal(t, "partial_block", outcome(t, d, short(103, 102, 3)), "a whole one was seen")
}

func TestTheFirstWholeBlockShowsThatTheSizeIsRight(t *testing.T) {
	w := newZMQWorker(t, 0, 0)
	r := newRig(t, nil)
	r.follow(w.source())
	w.publish(store(event{"block_hashes": []int{1, 2}, "block_size": 1}), false)
	r.eventually("refused", func() bool { return r.status(one).Missing[BlockSizeMismatch] == 1 })
	w.store(3, false)
	r.eventually("whole", func() bool { return r.holds(one, w.held) })
	require.Empty(t, r.status(one).Missing.Map())
	require.Equal(t, uint64(1), r.status(one).Refused[BlockSizeMismatch])
	w.publish(store(event{"block_size": 4}), false)
	w.store(4, false)
	r.eventually("whole", func() bool { return r.holds(one, w.held) })
	require.Equal(t, uint64(1), r.status(one).Missing[BlockSizeMismatch], "only the first one shows it")
}

// TestARankOfWhichNothingCanBeUsedCountsAsOneWithoutEvents, until something can.
func TestARankOfWhichNothingCanBeUsedCountsAsOneWithoutEvents(t *testing.T) {
	w := newZMQWorker(t, 0, 0)
	var sub atomic.Pointer[Subscriber]
	var told atomic.Bool // as of the latest hook
	r := newRig(t, func(c *Config) {
		c.Hooks.State = func(r worker.Rank, _ State) {
			if s := sub.Load(); s != nil {
				told.Store(s.Tells(r))
			}
		}
	})
	sub.Store(r.sub)
	r.follow(w.source())
	r.eventually("expected", func() bool { return told.Load() && r.status(one).State == StateConnected })
	window := event{"kv_cache_spec_kind": "sliding_window"}
	w.publish(store(window), false)
	r.eventually("nothing can be used", func() bool { return !told.Load() })
	require.False(t, r.sub.Tells(one))
	require.Equal(t, Told{Unusable: true, Why: ForeignGroup}, r.status(one).Told)
	w.publish(store(event{"group_idx": 1, "kv_cache_spec_kind": "full_attention"}), false)
	r.eventually("something can", told.Load)
	w.publish(store(window), false)
	w.store(1, false)
	r.eventually("heard", func() bool { return r.status(one).Messages == 4 })
	require.True(t, r.sub.Tells(one))
}

func TestABlockThatIsLeftOutSaysNothingOfTheOthers(t *testing.T) {
	d := NewDecoder(2, 0, false)
	outcome(t, d, removal(nil))
	outcome(t, d, store(event{"block_size": 1, "token_ids": []int{1}}))
	outcome(t, d, store(event{"extra_keys": [][]any{{7}}}))
	require.False(t, d.told.Unusable)
	outcome(t, d, store(event{"token_ids": []int{1}}))
	require.Equal(t, Told{Unusable: true, Why: TokenCount}, d.told)
	d.Reset()
	require.False(t, d.told.Unusable)
	outcome(t, d, store(nil))
	outcome(t, d, store(event{"token_ids": []int{1}}))
	require.False(t, d.told.Unusable)
	after := NewDecoder(2, 0, false)
	after.resume(d.learnt())
	outcome(t, after, store(event{"token_ids": []int{1}}))
	require.False(t, after.told.Unusable, "a process of before could use some")
}

func TestAPublisherThatRestartedIsLearntAnew(t *testing.T) {
	d := NewDecoder(2, 0, false)
	short := store(event{"block_size": 1, "token_ids": []int{1}})
	require.Equal(t, "device", outcome(t, d, store(event{"cache_salt": "t"})))
	require.Equal(t, "partial_block", outcome(t, d, short))
	require.NotEmpty(t, d.spaces.blocks)
	d.Reset()
	continues := store(event{"block_size": 1, "token_ids": []int{1}, "parent_block_hash": -5, "block_hashes": []int{9}})
	require.Equal(t, "partial_block", outcome(t, d, short))
	require.Equal(t, "block_size_mismatch", outcome(t, d, continues), "no whole block was seen of this one")
	require.Empty(t, d.spaces.blocks)
}

func TestADecoderDoesNotGrowWithWhatItDecodes(t *testing.T) {
	d := NewDecoder(2, 0, false)
	p := payload(t, 0, store(nil), removal(nil))
	_, err := d.Decode(p)
	require.NoError(t, err)
	blocks, removed, events := cap(d.blocks), cap(d.removed), cap(d.batch.Events)
	for range 1000 {
		b, err := d.Decode(p)
		require.NoError(t, err)
		require.Len(t, b.Events, 2)
	}
	require.Equal(t, [3]int{blocks, removed, events}, [3]int{cap(d.blocks), cap(d.removed), cap(d.batch.Events)})
}

// TestOneLargeMessageIsNotKept: its buffers are outside of the index's budget.
func TestOneLargeMessageIsNotKept(t *testing.T) {
	const many = 1 << 18
	buffers := func(d *Decoder) (bytes int) {
		return 128*cap(d.batch.Events) + 16*cap(d.blocks) + 8*(cap(d.removed)+cap(d.hashes)+cap(d.locals)+cap(d.keys.keys)+cap(d.keys.ends)) + 4*cap(d.tokens)
	}
	d := NewDecoder(2, 0, false)
	require.LessOrEqual(t, unsafe.Sizeof(Event{}), uintptr(128))
	for _, e := range []event{{"block_hashes": make([]int, many)}, {"token_ids": make([]int, many)}, {"block_hashes": make([]int, many), "block_size": 1}} {
		_, err := d.Decode(payload(t, 0, store(e)))
		require.NoError(t, err)
		require.Less(t, buffers(d), 4096, "what the counts do not agree with is not decoded")
	}
	large := payload(t, 0, store(event{"block_hashes": make([]int, many), "token_ids": make([]int, 2*many), "extra_keys": make([]any, many)}), removal(event{"block_hashes": make([]int, many)}))
	b, err := d.Decode(large)
	require.NoError(t, err)
	require.Len(t, b.Events, 2)
	require.Greater(t, buffers(d), 10<<20)
	d.trim()
	require.Less(t, buffers(d), 4096)

	w := newZMQWorker(t, 0, 0)
	r := newRig(t, nil)
	r.follow(w.source())
	w.publish(removal(event{"block_hashes": make([]int, many)}), false)
	w.store(1, false)
	r.eventually("heard", func() bool { return r.holds(one, w.held) })
	s := r.sub.ranks[one].stream
	s.turn.Lock()
	defer s.turn.Unlock()
	require.Less(t, buffers(s.decoder), 4096)
}

func TestABatchOfAnotherRankIsRefused(t *testing.T) {
	b, err := NewDecoder(2, 1, false).Decode(payload(t, 0, store(nil), removal(nil)))
	require.NoError(t, err)
	require.Empty(t, b.Events)
	require.Equal(t, map[string]uint64{"foreign_rank": 2}, b.Refused.Map())
	b, err = NewDecoder(2, 1, false).Decode(payload(t, nil, store(nil)))
	require.NoError(t, err)
	require.Len(t, b.Events, 1)
}

func TestBatchesOfOtherLengths(t *testing.T) {
	two, err := msgpack.Marshal([]any{1.5, []any{store(nil)}})
	require.NoError(t, err)
	b, err := NewDecoder(2, 0, false).Decode(two)
	require.NoError(t, err)
	require.Len(t, b.Events, 1)
	four, err := msgpack.Marshal([]any{1, []any{store(nil)}, nil, "later"})
	require.NoError(t, err)
	b, err = NewDecoder(2, 0, false).Decode(four)
	require.NoError(t, err)
	require.Len(t, b.Events, 1)
}

func TestAnUnreadablePayloadIsOneMalformed(t *testing.T) {
	good := unhex(t, vllmStoredMap)
	d := NewDecoder(2, 0, false)
	for n := range good {
		b, err := d.Decode(good[:n])
		require.ErrorIs(t, err, errMsgpack, "cut to %d bytes", n)
		require.Equal(t, map[string]uint64{"malformed": 1}, b.Refused.Map())
	}
	for name, batch := range map[string]any{
		"no array": 7, "a timestamp alone": []any{1.5}, "events that are none": []any{1.5, 7, 0}, "a timestamp that is text": []any{"now", []any{}, 0},
	} {
		bad, err := msgpack.Marshal(batch)
		require.NoError(t, err)
		b, err := d.Decode(bad)
		require.ErrorIs(t, err, errMsgpack, name)
		require.Equal(t, map[string]uint64{"malformed": 1}, b.Refused.Map(), name)
	}
	_, err := d.Decode(append(append([]byte{}, good...), 0))
	require.ErrorIs(t, err, errMsgpack, "bytes after the batch")
	_, err = d.Decode(good)
	require.NoError(t, err)
}

func TestDecodingAllocatesNothingOnceWarm(t *testing.T) {
	d := NewDecoder(2, 0, false)
	for _, s := range []string{vllmStoredMap, vllmStoredArray, vllmRemovedMap} {
		p := unhex(t, s)
		_, err := d.Decode(p)
		require.NoError(t, err)
		require.Zero(t, testing.AllocsPerRun(50, func() { _, _ = d.Decode(p) }))
	}
}

func TestEveryReasonHasAName(t *testing.T) {
	seen := map[string]bool{}
	for r := range NumReasons {
		require.NotEmpty(t, r.String())
		require.False(t, seen[r.String()], r.String())
		seen[r.String()] = true
	}
	require.Equal(t, "invalid", NumReasons.String())
}

func TestTheWorstReasonIsTheMostFrequentThatIsNotNormal(t *testing.T) {
	r := Refusals{PartialBlock: 100, ForeignGroup: 70, UnknownParent: 3, TokenCount: 5}
	why, n := r.Worst()
	require.Equal(t, TokenCount, why)
	require.Equal(t, uint64(5), n)
	r[BlockSizeMismatch] = 1
	why, n = r.Worst()
	require.Equal(t, BlockSizeMismatch, why)
	require.Equal(t, uint64(1), n)
	r = Refusals{PartialBlock: 100}
	_, n = r.Worst()
	require.Zero(t, n)
}

func BenchmarkDecodeOneBlockOf64(b *testing.B) {
	tokens := make([]uint32, 64)
	for i := range tokens {
		tokens[i] = uint32(i * 997)
	}
	p := payload(b, 0, store(event{"token_ids": tokens, "block_size": 64}))
	d := NewDecoder(64, 0, false)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = d.Decode(p)
	}
}
