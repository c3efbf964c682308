package replay

import "container/list"

// cache is the prefix cache of one rank: the least recently used block goes first, and of a
// prompt its end, so that what is left can always be reached.
type cache struct {
	capacity int // 0: no limit
	at       map[Block]*list.Element
	used     *list.List // latest first
}

func newCache(capacity int) *cache {
	return &cache{capacity: capacity, at: map[Block]*list.Element{}, used: list.New()}
}

// held returns how many leading blocks of the chain are there.
func (c *cache) held(chain []Block) int {
	for i, b := range chain {
		if c.at[b] == nil {
			return i
		}
	}
	return len(chain)
}

// put makes the chain the most recently used one and returns what an engine would tell of it:
// from where on its blocks are new, and those evicted. Of a chain longer than the cache the end
// is stored and evicted at once.
func (c *cache) put(chain []Block) (from int, evicted []Block) {
	from = c.held(chain)
	for i := len(chain) - 1; i >= 0; i-- { // the end is the oldest use
		if e := c.at[chain[i]]; e != nil {
			c.used.MoveToFront(e)
		} else {
			c.at[chain[i]] = c.used.PushFront(chain[i])
		}
	}
	for c.capacity > 0 && c.used.Len() > c.capacity {
		b := c.used.Remove(c.used.Back()).(Block)
		delete(c.at, b)
		evicted = append(evicted, b)
	}
	return from, evicted
}
