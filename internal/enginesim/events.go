package enginesim

import (
	"encoding/binary"
	"math"
)

// eventKind is what happened to a block, or to all blocks, of a rank's cache.
type eventKind uint8

const (
	blockStored eventKind = iota + 1
	blockRemoved
	allCleared
)

// event is one change of one block.
type event struct {
	kind      eventKind
	hash      int64
	parent    int64
	hasParent bool
	tokens    []uint32 // owned by the cache; read-only
	from      int      // where tokens begin in the prompt
	space     namespace
}

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

// runs cuts events into groups that are published as one event: a chain of stored blocks;
// with removals also a row of removed blocks; else a single event.
func runs(events []event, removals bool) [][]event {
	var out [][]event
	for i := 0; i < len(events); {
		end := i + 1
		for end < len(events) && events[end].follows(&events[end-1], removals) {
			end++
		}
		out = append(out, events[i:end])
		i = end
	}
	return out
}

// follows reports whether e is published in one event with the one before it.
func (e *event) follows(before *event, removals bool) bool {
	switch {
	case e.kind != before.kind:
		return false
	case e.kind == blockStored:
		return e.hasParent && e.parent == before.hash && e.space == before.space
	default:
		return e.kind == blockRemoved && removals
	}
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
		dst = appendTokenIDs(dst, run, true)
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

// appendTokenIDs appends the member with the tokens of all blocks of a run. padded says
// that SGLang's ids stand in place of pictures.
func appendTokenIDs(dst []byte, run []event, padded bool) []byte {
	n := 0
	for i := range run {
		n += len(run[i].tokens)
	}
	dst = appendArrayHeader(appendString(dst, "token_ids"), n)
	for i := range run {
		if padded && run[i].space.seen != nil {
			for _, t := range run[i].padded() {
				dst = appendUint(dst, t)
			}
			continue
		}
		for _, t := range run[i].tokens {
			dst = appendUint(dst, uint64(t))
		}
	}
	return dst
}

func appendArrayHeader(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return append(dst, 0x90|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, 0xdc), uint16(n))
	default:
		return binary.BigEndian.AppendUint32(append(dst, 0xdd), uint32(n))
	}
}

func appendString(dst []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		dst = append(dst, 0xa0|byte(n))
	case n < 1<<8:
		dst = append(dst, 0xd9, byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, 0xda), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xdb), uint32(n))
	}
	return append(dst, s...)
}

func appendUint(dst []byte, v uint64) []byte {
	switch {
	case v < 1<<7:
		return append(dst, byte(v))
	case v < 1<<8:
		return append(dst, 0xcc, byte(v))
	case v < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(v))
	case v < 1<<32:
		return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(v))
	default:
		return binary.BigEndian.AppendUint64(append(dst, 0xcf), v)
	}
}

func appendInt(dst []byte, v int64) []byte {
	switch {
	case v >= 0:
		return appendUint(dst, uint64(v))
	case v >= -32:
		return append(dst, byte(v))
	case v >= math.MinInt8:
		return append(dst, 0xd0, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, 0xd1), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, 0xd2), uint32(v))
	default:
		return binary.BigEndian.AppendUint64(append(dst, 0xd3), uint64(v))
	}
}
