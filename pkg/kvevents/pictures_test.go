package kvevents

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// testdata/vllm-extra-keys.json was written with vLLM 0.32.0's
// generate_block_hash_extra_keys and to_event_extra_keys, for random prompts, pictures,
// adapters and salts. None of it comes from our code.
func TestKeysAsVLLMMakesThemGiveTheHashesOfTheirPrompts(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/vllm-extra-keys.json")
	require.NoError(t, err)
	var cases []struct {
		Block      int
		Tokens     []uint32
		LoRA, Salt string
		Pictures   []struct {
			Identifier     string
			Offset, Length int
		}
		Keys []any `json:"extra_keys"`
	}
	require.NoError(t, json.Unmarshal(text, &cases))
	keyed := 0
	for i, c := range cases {
		var pictures []kvindex.Picture
		for _, p := range c.Pictures {
			h, ok := kvindex.HashMMIdentifier(p.Identifier)
			require.True(t, ok)
			pictures = append(pictures, kvindex.Picture{Hash: h, Offset: p.Offset, Length: p.Length})
		}
		want := kvindex.AppendPictureHashes(nil, c.Tokens, pictures, c.Block, false, kvindex.Salt{LoRA: c.LoRA, CacheSalt: c.Salt}.Seed())
		hashes := make([]int, len(want))
		for j := range hashes {
			hashes[j] = j + 1
		}
		e := event{
			"block_hashes": hashes, "parent_block_hash": nil, "token_ids": c.Tokens[:c.Block*len(want)], "block_size": c.Block,
			"extra_keys": whole(c.Keys),
		}
		if c.LoRA != "" {
			e["lora_id"], e["lora_name"] = 1, c.LoRA
		}
		got := decodeOne(t, NewDecoder(uint32(c.Block), 0, false), payload(t, 0, store(e))).Stored.Blocks //nolint:gosec // small
		require.Len(t, got, len(want), i)
		for j, b := range got {
			require.Equal(t, want[j], b.Local, "case %d, block %d", i, j)
		}
		keyed += len(pictures)
	}
	require.Greater(t, keyed, 50)
}

// whole turns the numbers of parsed JSON into integers.
func whole(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case float64:
		return int(v)
	}
	return v
}
