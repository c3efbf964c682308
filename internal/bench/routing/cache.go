package main

import (
	"container/list"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// cache is the KV cache of one rank: the least recently used block goes first,
// and of a sequence its end, so that what is left can always be reached.
type cache struct {
	capacity int
	at       map[kvindex.LocalHash]*list.Element
	used     *list.List // latest first
}

func newCache(capacity int) *cache {
	return &cache{capacity: capacity, at: map[kvindex.LocalHash]*list.Element{}, used: list.New()}
}

// held returns how many leading blocks of the chain are there.
func (c *cache) held(chain []kvindex.LocalHash) int {
	for i, h := range chain {
		if c.at[h] == nil {
			return i
		}
	}
	return len(chain)
}

// put makes the chain the most recently used one and returns what an engine
// would tell of it: the blocks that are new, from which on, and those evicted.
// Of a chain longer than the cache the end is stored and evicted at once.
func (c *cache) put(chain []kvindex.LocalHash) (from int, evicted []kvindex.EngineHash) {
	from = c.held(chain)
	for i := len(chain) - 1; i >= 0; i-- { // the end is the oldest use
		if e := c.at[chain[i]]; e != nil {
			c.used.MoveToFront(e)
		} else {
			c.at[chain[i]] = c.used.PushFront(chain[i])
		}
	}
	for c.used.Len() > c.capacity {
		h := c.used.Remove(c.used.Back()).(kvindex.LocalHash)
		delete(c.at, h)
		evicted = append(evicted, engineHash(h))
	}
	return from, evicted
}

// engineHash is what the simulated engines call a block: any one-to-one naming
// does, as long as it is not the hash that Baton computes itself.
func engineHash(h kvindex.LocalHash) kvindex.EngineHash {
	return kvindex.EngineHash(^uint64(h))
}
