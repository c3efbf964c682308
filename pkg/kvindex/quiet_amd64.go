//go:build !race

package kvindex

import (
	"sync/atomic"
	"unsafe"
)

// set stores a word that queries read, without the fence of an atomic store,
// which would keep the cache misses around it apart. The processor keeps all
// stores in order and writes a word at once, which is all that a query's check
// of the version needs. Not for a word that is stored to twice in a row: the
// compiler may leave the first one out.
func set(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }
