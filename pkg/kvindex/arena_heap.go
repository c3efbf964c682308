//go:build !linux || !(amd64 || arm64) || race

package kvindex

import "unsafe"

const (
	// MostBytes is the most that TreeConfig.MaxBytes may be. On this build it is low:
	// memory reserved on the garbage collector's heap counts as used, and the race
	// detector shadows all of it.
	MostBytes = 64 << 20
	// DefaultMaxBytes is the default of TreeConfig.MaxBytes.
	DefaultMaxBytes = MostBytes
)

// reserve takes zeroed memory from the heap, where the race detector sees every access.
// It allocates words, so that 64-bit values are aligned.
func reserve(bytes int, _ bool) ([]byte, func(), error) {
	words := make([]uint64, (bytes+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), bytes), func() {}, nil
}

// discard gives nothing back: the garbage collector owns the memory.
func discard([]byte) bool { return false }
