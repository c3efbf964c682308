package core

import (
	"encoding/binary"
	"math"
)

// eventKind is what happened to a block, or to all blocks, of a rank's cache.
type eventKind uint8

// The kinds.
const (
	BlockStored eventKind = iota + 1
	BlockRemoved
	AllCleared
)

// Event is one change of one block.
type Event struct {
	Kind      eventKind
	Hash      int64
	Parent    int64
	HasParent bool
	Tokens    []uint32 // owned by the cache; read-only
	From      int      // where tokens begin in the prompt
	Space     Namespace
}

// Runs cuts events into groups that are published as one event: a chain of stored blocks;
// with removals also a row of removed blocks; else a single event.
func Runs(events []Event, removals bool) [][]Event {
	var out [][]Event
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
func (e *Event) follows(before *Event, removals bool) bool {
	switch {
	case e.Kind != before.Kind:
		return false
	case e.Kind == BlockStored:
		return e.HasParent && e.Parent == before.Hash && e.Space == before.Space
	default:
		return e.Kind == BlockRemoved && removals
	}
}

// AppendArrayHeader appends the head of a msgpack array of n values.
func AppendArrayHeader(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return append(dst, 0x90|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, 0xdc), uint16(n))
	default:
		return binary.BigEndian.AppendUint32(append(dst, 0xdd), uint32(n))
	}
}

// AppendString appends a msgpack string.
func AppendString(dst []byte, s string) []byte {
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

// AppendUint appends a msgpack number in its shortest form.
func AppendUint(dst []byte, v uint64) []byte {
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

// AppendInt appends a msgpack number in its shortest form.
func AppendInt(dst []byte, v int64) []byte {
	switch {
	case v >= 0:
		return AppendUint(dst, uint64(v))
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
