package chat

import (
	"container/list"
	"hash/maphash"
	"sync"

	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// A Store keeps what was made of messages and tools, by the bytes of their JSON. It is safe
// for concurrent use. A nil Store keeps nothing.
type Store struct {
	seed  maphash.Seed
	limit int

	// mu guards what is below. It is a leaf: nothing is called while it is held, and it is
	// held for one look-up.
	mu      sync.Mutex
	used    int
	entries map[storeKey]*list.Element
	// order has the entries, the one used last in front.
	order *list.List
}

// storeKey is a hash of the bytes, and in what way they are prepared.
type storeKey struct {
	hash uint64
	way  way
}

// entry is one member. made is not changed.
type entry struct {
	key  storeKey
	raw  string
	made member
	cost int
}

// member is a prepared message or list of tools.
type member struct {
	value jinja.Value
	// media: it has parts that are no text.
	media bool
}

// NewStore returns a store of at most limit bytes.
func NewStore(limit int) *Store {
	return &Store{seed: maphash.MakeSeed(), limit: limit, entries: map[storeKey]*list.Element{}, order: list.New()}
}

// roomOf is how many bytes loops may remember of a message.
func roomOf(raw []byte) int { return 2048 + 2*len(raw) }

// costOf is what an entry is taken to use: its bytes, the text that decoding copies, the
// decoded value, and what loops may remember.
func costOf(raw []byte, m member) int { return 256 + 2*len(raw) + jinja.Size(m.value) + roomOf(raw) }

// get returns what was made of raw in this way, or makes it.
func (s *Store) get(raw []byte, w way) (member, error) {
	if s == nil {
		return w.prepare(raw)
	}
	key := storeKey{maphash.Bytes(s.seed, raw), w}
	e := s.find(key)
	if e != nil && e.raw == string(raw) {
		return e.made, nil
	}
	m, err := w.prepare(raw)
	if err != nil {
		return member{}, err
	}
	d, ok := m.value.(*jinja.Dict)
	if ok {
		d.Remember(roomOf(raw))
	}
	cost := costOf(raw, m)
	if cost <= s.limit {
		s.put(&entry{key: key, raw: string(raw), made: m, cost: cost})
	}
	return m, nil
}

func (s *Store) find(key storeKey) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[key]
	if !ok {
		return nil
	}
	s.order.MoveToFront(e)
	return e.Value.(*entry)
}

func (s *Store) put(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.entries[e.key]
	if ok {
		s.remove(old)
	}
	s.used += e.cost
	s.entries[e.key] = s.order.PushFront(e)
	for s.used > s.limit {
		s.remove(s.order.Back())
	}
}

func (s *Store) remove(el *list.Element) {
	e := el.Value.(*entry)
	s.used -= e.cost
	delete(s.entries, e.key)
	s.order.Remove(el)
}
