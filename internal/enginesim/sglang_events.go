package enginesim

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
)

// appendEventBatch appends the msgpack payload of one batch: the array [ts, [events],
// attn_dp_rank]. Each event is a map, as in SGLang >= 0.5.20 (older versions wrote
// arrays; the batch is still one). Blocks that were stored one after another in a chain
// are one event, and so are blocks that were removed together.
func appendEventBatch(dst []byte, ts float64, events []event, rank uint32) []byte {
	rows := runs(events, true)
	dst = append(dst, 0x93, 0xcb)
	dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(ts))
	dst = appendArrayHeader(dst, len(rows))
	for _, run := range rows {
		dst = appendEvent(dst, run)
	}
	return appendUint(dst, uint64(rank))
}

func appendEvent(dst []byte, run []event) []byte {
	e := &run[0]
	switch e.kind {
	case blockStored:
		// Members without a value are left out (omit_defaults).
		more := make([]string, 0, 4)
		if e.space.salt != "" {
			more = append(more, "cache_salt", e.space.salt)
		}
		if e.space.adapter != "" {
			more = append(more, "lora_name", e.space.adapter)
		}
		dst = appendString(appendString(append(dst, 0x87+byte(len(more)/2)), "type"), "BlockStored")
		dst = appendSignedHashes(appendString(dst, "block_hashes"), run)
		dst = appendString(dst, "parent_block_hash")
		if e.hasParent {
			dst = appendInt(dst, e.parent)
		} else {
			dst = append(dst, 0xc0)
		}
		dst = appendTokenIDs(dst, run)
		dst = appendUint(appendString(dst, "block_size"), uint64(len(e.tokens)))
		dst = append(appendString(dst, "lora_id"), 0xc0)
		dst = appendString(appendString(dst, "medium"), "GPU")
		for _, s := range more {
			dst = appendString(dst, s)
		}
		return dst
	case blockRemoved:
		dst = appendString(appendString(append(dst, 0x83), "type"), "BlockRemoved")
		dst = appendSignedHashes(appendString(dst, "block_hashes"), run)
		return appendString(appendString(dst, "medium"), "GPU")
	default:
		return appendString(appendString(append(dst, 0x81), "type"), "AllBlocksCleared")
	}
}

func appendSignedHashes(dst []byte, run []event) []byte {
	dst = appendArrayHeader(dst, len(run))
	for i := range run {
		dst = appendInt(dst, run[i].hash)
	}
	return dst
}

// appendTokenIDs appends the member with the tokens of all blocks of a run, with SGLang's
// ids in place of pictures.
func appendTokenIDs(dst []byte, run []event) []byte {
	n := 0
	for i := range run {
		n += len(run[i].tokens)
	}
	dst = appendArrayHeader(appendString(dst, "token_ids"), n)
	for i := range run {
		for _, t := range padded(&run[i]) {
			dst = appendUint(dst, t)
		}
	}
	return dst
}

// pads are the ids that SGLang 0.5.23 puts in turn in place of a picture's tokens
// (docs/engines.md#event-pads).
func pads(p *picture) (out [4]uint64) {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("sglang-mm-wide-pad-v1"), p.sum))
	for i := range out {
		out[i] = 1_000_000 + binary.BigEndian.Uint64(sum[8*i:])&(1<<62-1)
	}
	return out
}

// padded returns the event's tokens, with SGLang's own ids in place of pictures.
func padded(e *event) []uint64 {
	out := make([]uint64, len(e.tokens))
	for i, t := range e.tokens {
		out[i] = uint64(t)
	}
	for _, p := range e.space.seen.within(e.from, e.from+len(e.tokens)) {
		pads := pads(&p)
		for i := max(p.offset, e.from); i < min(p.offset+p.length, e.from+len(e.tokens)); i++ {
			out[i-e.from] = pads[(i-p.offset)%len(pads)]
		}
	}
	return out
}
