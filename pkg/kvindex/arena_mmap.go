//go:build linux && (amd64 || arm64) && !race

package kvindex

import (
	"fmt"
	"syscall"
)

const (
	// MostBytes is the most that TreeConfig.MaxBytes may be: block numbers have 28 bits.
	MostBytes = 8 << 30
	// DefaultMaxBytes is the default of TreeConfig.MaxBytes.
	DefaultMaxBytes = 512 << 20
)

// hugePage is the size of a huge page: a smaller arena has no use for one.
const hugePage = 2 << 20

// reserve maps zeroed memory outside of the garbage collector's heap. The collector
// does not scan it or count it, and it may have huge pages, which save a quarter to a
// half of each random access.
func reserve(bytes int, huge bool) ([]byte, func(), error) {
	b, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		return nil, nil, fmt.Errorf("kvindex: reserve %d bytes of address space: %w", bytes, err)
	}
	if huge && bytes >= hugePage {
		// A kernel without huge pages refuses, and the memory has small pages then.
		_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE)
	}
	return b, func() { _ = syscall.Munmap(b) }, nil
}

// discard gives memory back to the system; it reads as zero from then on. False means
// that the memory stays as it is.
func discard(b []byte) bool {
	return syscall.Getpagesize() == pageBytes && syscall.Madvise(b, syscall.MADV_DONTNEED) == nil
}
