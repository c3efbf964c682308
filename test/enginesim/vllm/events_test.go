package vllm

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

func TestEventsOfVLLM(t *testing.T) {
	// They are encoded as by 0.32 (testdata/captures).
	samples := map[string][]core.Event{
		"93cb41d954fc40200000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf1122334455667788cffedcba9876543210b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473940102cd012cce00011170aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797392c0c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00": {
			{Kind: core.BlockStored, Hash: 0x1122334455667788, Tokens: []uint32{1, 2}},
			{Kind: core.BlockStored, Hash: signed(0xfedcba9876543210), Parent: 0x1122334455667788, HasParent: true, Tokens: []uint32{300, 70000}},
		},
		"93cb41d954fc402000009184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf1122334455667788a66d656469756da3475055a967726f75705f6964780000": {
			{Kind: core.BlockRemoved, Hash: 0x1122334455667788},
		},
		"93cb41d954fc4020000091" + "81a474797065b0416c6c426c6f636b73436c656172656400": {{Kind: core.AllCleared}},
	}
	for want, events := range samples {
		require.Equal(t, want, hex.EncodeToString(new(engine).appendEvents(nil, 1700000000.5, events, 0)))
	}
}

func signed(v uint64) int64 { return int64(v) } //nolint:gosec // a bit pattern

func TestBlocksThatDoNotFollowEachOtherAreEventsOfTheirOwn(t *testing.T) {
	events := []core.Event{
		{Kind: core.BlockStored, Hash: 1, Tokens: []uint32{1}},
		{Kind: core.BlockStored, Hash: 2, Parent: 1, HasParent: true, Tokens: []uint32{2}},
		{Kind: core.BlockStored, Hash: 3, Parent: 1, HasParent: true, Tokens: []uint32{3}},
		{Kind: core.BlockRemoved, Hash: 2},
		{Kind: core.BlockStored, Hash: 4, Tokens: []uint32{4}},
	}
	var lengths []int
	for _, run := range core.Runs(events, false) {
		lengths = append(lengths, len(run))
	}
	require.Equal(t, []int{2, 1, 1, 1}, lengths)
	var batch []any
	require.NoError(t, msgpack.Unmarshal(new(engine).appendEvents(nil, 1, events, 3), &batch))
	require.Len(t, batch[1], 4)
	require.EqualValues(t, 3, batch[2])
	second := batch[1].([]any)[1].(map[string]any)
	require.EqualValues(t, 1, second["parent_block_hash"])
	require.EqualValues(t, []any{int8(3)}, second["token_ids"])
}

func TestTheDefaultLeaseIsTheEngines(t *testing.T) {
	require.Equal(t, 30*time.Second, core.Config{}.WithDefaults(NIXL()).KVLease)
}
