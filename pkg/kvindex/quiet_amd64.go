//go:build !race

package kvindex

import (
	"sync/atomic"
	"unsafe"
)

// set stores a word that queries read, without the fence of an atomic store: a fence
// would keep the cache misses before and after it from overlapping. An amd64 processor
// keeps stores in order and writes a word at once, which is all that a query's check of
// the version needs. Do not use it for two stores to a word in a row: the compiler may
// leave out the first.
func set(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }
