package sglang

import (
	"crypto/sha256"
	"encoding/binary"
	"math"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// appendEvents appends the msgpack payload of one batch: the array [ts, [events],
// attn_dp_rank]. Each event is a map, as in SGLang >= 0.5.20 (older versions wrote
// arrays; the batch is still one). Blocks that were stored one after another in a chain
// are one event, and so are blocks that were removed together.
func appendEvents(dst []byte, ts float64, events []core.Event, rank uint32) []byte {
	rows := core.Runs(events, true)
	dst = append(dst, 0x93, 0xcb)
	dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(ts))
	dst = core.AppendArrayHeader(dst, len(rows))
	for _, run := range rows {
		dst = appendEvent(dst, run)
	}
	return core.AppendUint(dst, uint64(rank))
}

func appendEvent(dst []byte, run []core.Event) []byte {
	e := &run[0]
	switch e.Kind {
	case core.BlockStored:
		// Members without a value are left out (omit_defaults).
		more := make([]string, 0, 4)
		if e.Space.Salt != "" {
			more = append(more, "cache_salt", e.Space.Salt)
		}
		if e.Space.Adapter != "" {
			more = append(more, "lora_name", e.Space.Adapter)
		}
		dst = core.AppendString(core.AppendString(append(dst, 0x87+byte(len(more)/2)), "type"), "BlockStored")
		dst = appendSignedHashes(core.AppendString(dst, "block_hashes"), run)
		dst = core.AppendString(dst, "parent_block_hash")
		if e.HasParent {
			dst = core.AppendInt(dst, e.Parent)
		} else {
			dst = append(dst, 0xc0)
		}
		dst = appendTokenIDs(dst, run)
		dst = core.AppendUint(core.AppendString(dst, "block_size"), uint64(len(e.Tokens)))
		dst = append(core.AppendString(dst, "lora_id"), 0xc0)
		dst = core.AppendString(core.AppendString(dst, "medium"), "GPU")
		for _, s := range more {
			dst = core.AppendString(dst, s)
		}
		return dst
	case core.BlockRemoved:
		dst = core.AppendString(core.AppendString(append(dst, 0x83), "type"), "BlockRemoved")
		dst = appendSignedHashes(core.AppendString(dst, "block_hashes"), run)
		return core.AppendString(core.AppendString(dst, "medium"), "GPU")
	default:
		return core.AppendString(core.AppendString(append(dst, 0x81), "type"), "AllBlocksCleared")
	}
}

func appendSignedHashes(dst []byte, run []core.Event) []byte {
	dst = core.AppendArrayHeader(dst, len(run))
	for i := range run {
		dst = core.AppendInt(dst, run[i].Hash)
	}
	return dst
}

// appendTokenIDs appends the member with the tokens of all blocks of a run, with SGLang's
// ids in place of pictures.
func appendTokenIDs(dst []byte, run []core.Event) []byte {
	n := 0
	for i := range run {
		n += len(run[i].Tokens)
	}
	dst = core.AppendArrayHeader(core.AppendString(dst, "token_ids"), n)
	for i := range run {
		if run[i].Space.Seen != nil {
			for _, t := range padded(&run[i]) {
				dst = core.AppendUint(dst, t)
			}
			continue
		}
		for _, t := range run[i].Tokens {
			dst = core.AppendUint(dst, uint64(t))
		}
	}
	return dst
}

// pads are the ids that SGLang 0.5.23 puts in turn in place of a picture's tokens
// (docs/engines.md#event-pads).
func pads(p *core.Picture) (out [4]uint64) {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("sglang-mm-wide-pad-v1"), p.Sum))
	for i := range out {
		out[i] = 1_000_000 + binary.BigEndian.Uint64(sum[8*i:])&(1<<62-1)
	}
	return out
}

// padded returns the event's tokens, with SGLang's own ids in place of pictures.
func padded(e *core.Event) []uint64 {
	out := make([]uint64, len(e.Tokens))
	for i, t := range e.Tokens {
		out[i] = uint64(t)
	}
	for _, p := range e.Space.Seen.Within(e.From, e.From+len(e.Tokens)) {
		pads := pads(&p)
		for i := max(p.Offset, e.From); i < min(p.Offset+p.Length, e.From+len(e.Tokens)); i++ {
			out[i-e.From] = pads[(i-p.Offset)%len(pads)]
		}
	}
	return out
}
