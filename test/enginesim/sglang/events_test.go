package sglang

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

func TestEventBytes(t *testing.T) {
	const head = "93cb41d954fc40200000"
	for _, tc := range []struct {
		name  string
		rank  uint32
		event core.Event
		want  string
	}{
		{
			"a page as SGLang publishes it, with signed hashes", 0,
			core.Event{Kind: core.BlockStored, Hash: -5, Parent: -7, HasParent: true, Tokens: []uint32{1, 2}},
			"9187a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391fb" +
				"b1706172656e745f626c6f636b5f68617368f9a9746f6b656e5f696473920102aa626c6f636b5f73697a6502" +
				"a76c6f72615f6964c0a66d656469756da347505500",
		},
		{
			"a first page with large ids and hash", 0,
			core.Event{Kind: core.BlockStored, Hash: 1 << 62, Tokens: []uint32{1, 2, 300, 70000}},
			"9187a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf4000000000000000" +
				"b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473940102cd012cce00011170aa626c6f636b5f73697a6504" +
				"a76c6f72615f6964c0a66d656469756da347505500",
		},
		{
			"a removed page", 0,
			core.Event{Kind: core.BlockRemoved, Hash: 0x1122334455667788},
			"9183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf1122334455667788a66d656469756da347505500",
		},
		{"a cleared cache", 3, core.Event{Kind: core.AllCleared}, "9181a474797065b0416c6c426c6f636b73436c656172656403"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := appendEvents(nil, 1700000000.5, []core.Event{tc.event}, tc.rank)
			require.Equal(t, head+tc.want, hex.EncodeToString(got))
		})
	}
}

// The pads are made as by _compute_pad_values of 0.5.23. Those of the hash 1 were
// computed with that function.
func TestSGLangPadsPictures(t *testing.T) {
	p := core.Picture{Sum: 1}
	require.Equal(t, [4]uint64{3788338550080000423, 377845433008484899, 3733550331958129848, 2196988971805300528}, pads(&p))
}
