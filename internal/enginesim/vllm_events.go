package enginesim

import (
	"encoding/binary"
	"math"
	"slices"
)

// appendEvents appends [ts, [events], data_parallel_rank], each event a map as vLLM >=
// 0.24 encodes it, with unsigned hashes. Blocks that were stored one after another in a
// chain are one event, as in the engine (docs/engines.md#event-many).
func (v *vllm) appendEvents(dst []byte, ts float64, events []event, rank uint32) []byte {
	rows := runs(events, false)
	dst = append(dst, 0x93, 0xcb)
	dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(ts))
	dst = appendArrayHeader(dst, len(rows))
	for _, run := range rows {
		dst = v.appendEvent(dst, run)
	}
	return appendUint(dst, uint64(rank))
}

func (v *vllm) appendEvent(dst []byte, run []event) []byte {
	first := &run[0]
	switch first.kind {
	case blockStored:
		dst = appendString(appendString(append(dst, 0x8b), "type"), "BlockStored")
		dst = appendHashes(appendString(dst, "block_hashes"), run)
		dst = appendString(dst, "parent_block_hash")
		if first.hasParent {
			dst = appendUint(dst, uint64(first.parent)) //nolint:gosec // a bit pattern
		} else {
			dst = append(dst, 0xc0)
		}
		dst = appendTokens(dst, run)
		dst = appendUint(appendString(dst, "block_size"), uint64(len(first.tokens)))
		adapter := first.space.adapter
		if dst = appendString(dst, "lora_id"); adapter == "" {
			dst = append(dst, 0xc0)
		} else {
			dst = appendUint(dst, uint64(slices.Index(v.cfg.Adapters, adapter)+1)) //nolint:gosec // an index
		}
		dst = appendString(appendString(dst, "medium"), "GPU")
		if dst = appendString(dst, "lora_name"); adapter == "" {
			dst = append(dst, 0xc0)
		} else {
			dst = appendString(dst, adapter)
		}
		dst = appendArrayHeader(appendString(dst, "extra_keys"), len(run))
		for i := range run {
			dst = appendExtraKeys(dst, &run[i])
		}
		dst = append(appendString(dst, "group_idx"), 0)
		return appendString(appendString(dst, "kv_cache_spec_kind"), "full_attention")
	case blockRemoved:
		dst = appendString(appendString(append(dst, 0x84), "type"), "BlockRemoved")
		dst = appendHashes(appendString(dst, "block_hashes"), run)
		dst = appendString(appendString(dst, "medium"), "GPU")
		return append(appendString(dst, "group_idx"), 0)
	default:
		return appendString(appendString(append(dst, 0x81), "type"), "AllBlocksCleared")
	}
}

// appendExtraKeys appends what a block's hash depends on besides its tokens: the
// adapter's name, the block's pictures with their places, and in the first block of a
// prompt the salt (to_event_extra_keys of 0.32).
func appendExtraKeys(dst []byte, e *event) []byte {
	pictures := e.space.seen.within(e.from, e.from+len(e.tokens))
	n := len(pictures)
	salted := e.space.salt != "" && !e.hasParent
	for _, is := range []bool{e.space.adapter != "", salted} {
		n += map[bool]int{true: 1}[is]
	}
	if n == 0 {
		return append(dst, 0xc0)
	}
	dst = appendArrayHeader(dst, n)
	if e.space.adapter != "" {
		dst = appendString(dst, e.space.adapter)
	}
	for _, p := range pictures {
		dst = appendString(appendArrayHeader(dst, 2), p.id)
		dst = appendInt(dst, int64(p.offset-e.from))
	}
	if salted {
		dst = appendString(dst, e.space.salt)
	}
	return dst
}

func appendHashes(dst []byte, run []event) []byte {
	dst = appendArrayHeader(dst, len(run))
	for i := range run {
		dst = appendUint(dst, uint64(run[i].hash)) //nolint:gosec // a bit pattern
	}
	return dst
}

// appendTokens appends the member with the tokens of all blocks of a run.
func appendTokens(dst []byte, run []event) []byte {
	n := 0
	for i := range run {
		n += len(run[i].tokens)
	}
	dst = appendArrayHeader(appendString(dst, "token_ids"), n)
	for i := range run {
		for _, t := range run[i].tokens {
			dst = appendUint(dst, uint64(t))
		}
	}
	return dst
}
