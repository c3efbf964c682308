package kvevents

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/hashvectors"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// The prompts of the vectors come as engines send them, in every form in which engines
// name a salt and multimodal objects.
func TestStoredBlocksHashToVectorsOfAnotherImplementation(t *testing.T) {
	vectors, err := hashvectors.Read("../kvindex/testdata/vectors/hashes.txt")
	require.NoError(t, err)
	var eagle, objects, salted int
	for _, v := range vectors {
		if len(v.Local) == 0 {
			continue // no engine publishes a store without blocks
		}
		for form, e := range storesOf(&v) {
			t.Run(v.Name+", "+form, func(t *testing.T) {
				d := NewDecoder(uint32(v.BlockSize), 0, v.Eagle)
				got := decodeOne(t, d, payload(t, 0, e)).Stored.Blocks
				require.Len(t, got, len(v.Local))
				for i, b := range got {
					require.Equal(t, kvindex.Block{Engine: kvindex.EngineHash(i + 1), Local: kvindex.LocalHash(v.Local[i])}, b, "block %d", i)
				}
			})
		}
		eagle += count(v.Eagle)
		objects += count(v.Objects != nil)
		salted += count(v.CacheSalt != "")
	}
	require.Greater(t, eagle, 4)
	require.Greater(t, objects, 4)
	require.Greater(t, salted, 4)
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// storesOf returns the stores of a vector's blocks, one in each form.
func storesOf(v *hashvectors.Vector) map[string]event {
	hashes := make([]int, len(v.Local))
	keys, infos := make([]any, len(v.Local)), make([]any, len(v.Local))
	for i := range v.Local {
		hashes[i] = i + 1
		if i >= len(v.Objects) || len(v.Objects[i]) == 0 {
			continue
		}
		var texts []string
		var of []any
		for _, h := range v.Objects[i] {
			texts = append(texts, object(h))
			of = append(of, map[string]any{"mm_hash": h, "offsets": [][]int{{0, 1}}})
		}
		keys[i], infos[i] = texts, map[string]any{"mm_objects": of}
	}
	base := func(more event) event {
		e := event{
			"type": "BlockStored", "block_hashes": hashes, "token_ids": tokensOf(v), "block_size": v.BlockSize,
			"lora_name": v.LoRA, "medium": "GPU",
		}
		maps.Copy(e, more)
		return e
	}
	salted := append([]any{}, keys...)
	if v.CacheSalt != "" {
		first, _ := keys[0].([]string)
		salted[0] = append([]string{"dynamo-cache-salt:" + v.CacheSalt}, first...)
	}
	return map[string]event{
		"all among the keys":              base(event{"extra_keys": salted}),
		"a salt of its own and infos":     base(event{"cache_salt": v.CacheSalt, "block_mm_infos": infos}),
		"a salt in the metadata and keys": base(event{"metadata": event{"cache_salt": v.CacheSalt}, "extra_keys": keys}),
	}
}

// tokensOf returns the tokens of the whole blocks, with EAGLE as pairs.
func tokensOf(v *hashvectors.Vector) any {
	n := len(v.Local) * v.BlockSize
	if !v.Eagle {
		return v.Tokens[:n]
	}
	pairs := make([][2]uint32, n)
	for i := range pairs {
		pairs[i] = [2]uint32{v.Tokens[i], v.Tokens[i+1]}
	}
	return pairs
}
