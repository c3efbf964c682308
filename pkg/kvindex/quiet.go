//go:build !amd64 || race

package kvindex

import "sync/atomic"

// set stores a word that queries read. Elsewhere than on amd64 a plain store
// could overtake the version's before it.
func set(p *atomic.Uint64, v uint64) { p.Store(v) }
