//go:build !linux || !(amd64 || arm64) || race

package kvindex

import "unsafe"

const (
	// MostBytes is the most that TreeConfig.MaxBytes may be: on the collector's heap what is
	// reserved counts as used, and the race detector shadows all of it.
	MostBytes = 64 << 20
	// DefaultMaxBytes is what TreeConfig.MaxBytes is when 0.
	DefaultMaxBytes = MostBytes
)

// reserve takes zeroed memory from the heap, where the race detector sees every
// access. Words, so that 64-bit values are aligned.
func reserve(bytes int, _ bool) ([]byte, func(), error) {
	words := make([]uint64, (bytes+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), bytes), func() {}, nil
}

// discard gives nothing back: the collector has it.
func discard([]byte) bool { return false }
