//go:build linux && (amd64 || arm64) && !race

package kvindex

import (
	"fmt"
	"syscall"
)

const (
	// MostBytes is the most that TreeConfig.MaxBytes may be: block numbers have 28 bits.
	MostBytes = 8 << 30
	// DefaultMaxBytes is what TreeConfig.MaxBytes is when 0.
	DefaultMaxBytes = 512 << 20
)

// hugePage is the size from which huge pages are worth asking for.
const hugePage = 2 << 20

// reserve maps zeroed memory outside the collector's heap: it is not scanned,
// does not count towards the next collection, and may have huge pages, which
// save a quarter to a half of each random access.
func reserve(bytes int, huge bool) ([]byte, func(), error) {
	b, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		return nil, nil, fmt.Errorf("kvindex: reserve %d bytes of address space: %w", bytes, err)
	}
	if huge && bytes >= hugePage {
		// A kernel without huge pages says no, and nothing is lost.
		_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE)
	}
	return b, func() { _ = syscall.Munmap(b) }, nil
}

// discard lets the system have memory back; it reads as zero from then on.
func discard(b []byte) bool {
	return syscall.Getpagesize() == pageBytes && syscall.Madvise(b, syscall.MADV_DONTNEED) == nil
}
