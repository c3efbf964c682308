//go:build !amd64 || race

package kvindex

import "sync/atomic"

// set stores a word that queries read. On machines other than amd64 a plain store could
// overtake the earlier store of the node's version.
func set(p *atomic.Uint64, v uint64) { p.Store(v) }
