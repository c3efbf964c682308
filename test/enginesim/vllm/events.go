package vllm

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// appendEvents appends [ts, [events], data_parallel_rank], each event a map as vLLM >=
// 0.24 encodes it, with unsigned hashes. Blocks that were stored one after another in a
// chain are one event, as in the engine (docs/engines.md#event-many).
func (v *engine) appendEvents(dst []byte, ts float64, events []core.Event, rank uint32) []byte {
	rows := core.Runs(events, false)
	dst = append(dst, 0x93, 0xcb)
	dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(ts))
	dst = core.AppendArrayHeader(dst, len(rows))
	for _, run := range rows {
		dst = v.appendEvent(dst, run)
	}
	return core.AppendUint(dst, uint64(rank))
}

func (v *engine) appendEvent(dst []byte, run []core.Event) []byte {
	first := &run[0]
	switch first.Kind {
	case core.BlockStored:
		dst = core.AppendString(core.AppendString(append(dst, 0x8b), "type"), "BlockStored")
		dst = appendHashes(core.AppendString(dst, "block_hashes"), run)
		dst = core.AppendString(dst, "parent_block_hash")
		if first.HasParent {
			dst = core.AppendUint(dst, uint64(first.Parent)) //nolint:gosec // a bit pattern
		} else {
			dst = append(dst, 0xc0)
		}
		dst = appendTokens(dst, run)
		dst = core.AppendUint(core.AppendString(dst, "block_size"), uint64(len(first.Tokens)))
		adapter := first.Space.Adapter
		dst = core.AppendString(dst, "lora_id")
		if adapter == "" {
			dst = append(dst, 0xc0)
		} else {
			dst = core.AppendUint(dst, uint64(slices.Index(v.cfg.Adapters, adapter)+1)) //nolint:gosec // an index
		}
		dst = core.AppendString(core.AppendString(dst, "medium"), "GPU")
		dst = core.AppendString(dst, "lora_name")
		if adapter == "" {
			dst = append(dst, 0xc0)
		} else {
			dst = core.AppendString(dst, adapter)
		}
		dst = core.AppendArrayHeader(core.AppendString(dst, "extra_keys"), len(run))
		for i := range run {
			dst = appendExtraKeys(dst, &run[i])
		}
		dst = append(core.AppendString(dst, "group_idx"), 0)
		return core.AppendString(core.AppendString(dst, "kv_cache_spec_kind"), "full_attention")
	case core.BlockRemoved:
		dst = core.AppendString(core.AppendString(append(dst, 0x84), "type"), "BlockRemoved")
		dst = appendHashes(core.AppendString(dst, "block_hashes"), run)
		dst = core.AppendString(core.AppendString(dst, "medium"), "GPU")
		return append(core.AppendString(dst, "group_idx"), 0)
	default:
		return core.AppendString(core.AppendString(append(dst, 0x81), "type"), "AllBlocksCleared")
	}
}

// appendExtraKeys appends what a block's hash depends on besides its tokens: the
// adapter's name, the block's pictures with their places, and in the first block of a
// prompt the salt (to_event_extra_keys of 0.32).
func appendExtraKeys(dst []byte, e *core.Event) []byte {
	pictures := e.Space.Seen.Within(e.From, e.From+len(e.Tokens))
	n := len(pictures)
	salted := e.Space.Salt != "" && !e.HasParent
	for _, is := range []bool{e.Space.Adapter != "", salted} {
		n += map[bool]int{true: 1}[is]
	}
	if n == 0 {
		return append(dst, 0xc0)
	}
	dst = core.AppendArrayHeader(dst, n)
	if e.Space.Adapter != "" {
		dst = core.AppendString(dst, e.Space.Adapter)
	}
	for _, p := range pictures {
		dst = core.AppendString(core.AppendArrayHeader(dst, 2), p.ID)
		dst = core.AppendInt(dst, int64(p.Offset-e.From))
	}
	if salted {
		dst = core.AppendString(dst, e.Space.Salt)
	}
	return dst
}

func appendHashes(dst []byte, run []core.Event) []byte {
	dst = core.AppendArrayHeader(dst, len(run))
	for i := range run {
		dst = core.AppendUint(dst, uint64(run[i].Hash)) //nolint:gosec // a bit pattern
	}
	return dst
}

// appendTokens appends the member with the tokens of all blocks of a run.
func appendTokens(dst []byte, run []core.Event) []byte {
	n := 0
	for i := range run {
		n += len(run[i].Tokens)
	}
	dst = core.AppendArrayHeader(core.AppendString(dst, "token_ids"), n)
	for i := range run {
		for _, t := range run[i].Tokens {
			dst = core.AppendUint(dst, uint64(t))
		}
	}
	return dst
}
