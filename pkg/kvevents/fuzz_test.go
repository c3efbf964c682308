package kvevents

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func corpus(f *testing.F) {
	for _, s := range []string{
		vllmStoredMap, vllmStoredArray, vllmRemovedMap, vllmRemovedArr, vllmClearedMap,
		vllmClearedArr, vllmBytesMap, sglangSigned, dynamoVector,
	} {
		f.Add(unhex(f, s))
	}
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0xdf, 0xff, 0xff, 0xff, 0xff})
	f.Add(bytes.Repeat([]byte{0x91}, 100))
	f.Add([]byte{0x92, 0xd6, 1, 2, 3, 4, 5, 0xc7, 1, 2, 3})
	f.Add(payload(f, 0, store(event{"extra_keys": []any{nil, []string{"x"}}}), store(event{"token_ids": [][]int{{1, 2}}})))
	f.Add(payload(f, 0, store(event{"token_ids": [][]int{{1, 2}, {2, 3}}, "extra_keys": []any{[]any{object(5), []any{"x", 1}}}, "cache_salt": "s"}),
		store(event{"parent_block_hash": int64(-5), "block_mm_infos": []any{map[string]any{"mm_objects": []any{map[string]any{"mm_hash": 5}}}}})))
}

// FuzzDecode checks that no input panics, that each event is used or counted, and that
// each event that is used is whole.
func FuzzDecode(f *testing.F) {
	corpus(f)
	f.Fuzz(func(t *testing.T, p []byte) {
		require.LessOrEqual(t, batchRank(p), worker.DPRank(worker.MaxDPSize))
		d := NewDecoder(2, 0, false)
		for range 2 {
			b, err := d.Decode(p)
			refused := uint64(0)
			for _, n := range b.Refused {
				refused += n
			}
			if err != nil {
				require.Empty(t, b.Events)
				require.Equal(t, uint64(1), refused)
				continue
			}
			for _, e := range b.Events {
				require.Contains(t, []Kind{Stored, Removed, Cleared}, e.Kind)
				require.LessOrEqual(t, 2*len(e.Stored.Blocks)+len(e.Removed.Blocks), len(p))
			}
			var raw []msgpack.RawMessage
			require.NoError(t, msgpack.Unmarshal(p, &raw))
			events, err := msgpack.NewDecoder(bytes.NewReader(raw[1])).DecodeArrayLen()
			require.NoError(t, err)
			require.GreaterOrEqual(t, uint64(len(b.Events))+refused, uint64(events))
		}
	})
}

// FuzzSkip compares the end of a value with the result of an independent reader.
func FuzzSkip(f *testing.F) {
	corpus(f)
	f.Fuzz(func(t *testing.T, p []byte) {
		r := reader{b: p}
		r.skip()
		if r.err != nil {
			return
		}
		rest := bytes.NewReader(p)
		require.NoError(t, msgpack.NewDecoder(rest).Skip())
		require.Equal(t, r.left(), rest.Len())
	})
}
