package recent

import (
	"container/list"
	"iter"
	"time"
)

// Map remembers what was put last. The zero value is ready, and holds any number of
// entries for ever. Not safe for concurrent use.
type Map[K comparable, V any] struct {
	Keep time.Duration // how long an entry is held after it was put; 0: for ever
	Most int           // entries held at once; 0: any number

	entries map[K]*list.Element
	order   list.List // of *entry[K, V], from the oldest to the newest
}

type entry[K comparable, V any] struct {
	key   K
	value V
	put   time.Time
}

// Get returns the value of k. held is false if there is none, or if it is overdue.
func (m *Map[K, V]) Get(k K, now time.Time) (v V, held bool) {
	at := m.entries[k]
	if at == nil || m.overdue(at, now) {
		return v, false
	}
	return m.of(at).value, true
}

// Put holds v for k from now on, as the newest entry. It returns false, and holds nothing
// for k, if there is no room for another key.
func (m *Map[K, V]) Put(k K, v V, now time.Time) bool {
	m.Expire(now)
	at := m.entries[k]
	switch {
	case at != nil:
		m.order.MoveToBack(at)
		e := m.of(at)
		e.value, e.put = v, now
		return true
	case m.Most > 0 && len(m.entries) >= m.Most:
		return false
	case m.entries == nil:
		m.entries = make(map[K]*list.Element)
	}
	m.entries[k] = m.order.PushBack(&entry[K, V]{k, v, now})
	return true
}

// Expire removes the entries that are overdue.
func (m *Map[K, V]) Expire(now time.Time) {
	for at := m.order.Front(); at != nil && m.overdue(at, now); at = m.order.Front() {
		m.remove(at)
	}
}

// Delete ends the entry of k, and reports whether there was one.
func (m *Map[K, V]) Delete(k K) bool {
	at := m.entries[k]
	if at != nil {
		m.remove(at)
	}
	return at != nil
}

// DropOldest ends the entry that was put longest ago, and returns it. ok is false if there
// is none.
func (m *Map[K, V]) DropOldest() (k K, v V, ok bool) {
	at := m.order.Front()
	if at == nil {
		return k, v, false
	}
	m.remove(at)
	return m.of(at).key, m.of(at).value, true
}

// All yields the entries that take memory, from the oldest to the newest. The map is not changed
// meanwhile.
func (m *Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for at := m.order.Front(); at != nil; at = at.Next() {
			if e := m.of(at); !yield(e.key, e.value) {
				return
			}
		}
	}
}

// Len returns how many entries take memory: those that are held, and overdue ones that were
// not removed yet.
func (m *Map[K, V]) Len() int { return len(m.entries) }

func (m *Map[K, V]) of(at *list.Element) *entry[K, V] { return at.Value.(*entry[K, V]) }

func (m *Map[K, V]) overdue(at *list.Element, now time.Time) bool {
	return m.Keep > 0 && now.Sub(m.of(at).put) > m.Keep
}

func (m *Map[K, V]) remove(at *list.Element) {
	delete(m.entries, m.of(at).key)
	m.order.Remove(at)
}
