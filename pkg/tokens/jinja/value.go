package jinja

import (
	"sync"
)

// A Value is what a template sees: nil (Python's None), bool, int, float64, string, *List,
// *Dict, or a kind that only templates make.
type Value = any

// A List is Python's list, or its tuple. It is not changed after it was made.
type List struct {
	Items []Value
	tuple bool
}

// NewList returns a list of items, which it owns from then on.
func NewList(items ...Value) *List { return &List{Items: items} }

// A Dict is Python's dict: it keeps the order in which keys were first set. Set must not be
// called once a template has seen it.
type Dict struct {
	keys []Value
	vals []Value
	// index finds a text key once there are many.
	index map[string]int
	// memory is what loops remember of this message; nil if nothing is to be remembered.
	memory *memory
}

// manyKeys is the size from which a map is quicker than looking at each key.
const manyKeys = 9

// NewDict returns an empty dictionary with room for n keys.
func NewDict(n int) *Dict {
	return &Dict{keys: make([]Value, 0, n), vals: make([]Value, 0, n)}
}

// Len returns the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// At returns the key and value at position i.
func (d *Dict) At(i int) (key, value Value) { return d.keys[i], d.vals[i] }

// Set sets a text key. A key that is there keeps its position.
func (d *Dict) Set(key string, v Value) {
	i := d.find(key)
	if i >= 0 {
		d.vals[i] = v
		return
	}
	d.add(key, v)
}

func (d *Dict) add(key, v Value) {
	d.keys = append(d.keys, key)
	d.vals = append(d.vals, v)
	s, ok := key.(string)
	switch {
	case !ok:
	case d.index != nil:
		d.index[s] = len(d.keys) - 1
	case len(d.keys) >= manyKeys:
		d.index = make(map[string]int, 2*len(d.keys))
		for i, k := range d.keys {
			if t, ok := k.(string); ok {
				d.index[t] = i
			}
		}
	}
}

// Get returns the value of a text key.
func (d *Dict) Get(key string) (Value, bool) {
	i := d.find(key)
	if i < 0 {
		return nil, false
	}
	return d.vals[i], true
}

func (d *Dict) find(key string) int {
	if d.index != nil {
		i, ok := d.index[key]
		if !ok {
			return -1
		}
		return i
	}
	for i, k := range d.keys {
		if s, ok := k.(string); ok && s == key {
			return i
		}
	}
	return -1
}

// lookup finds any hashable key: Python's equality, so 1, 1.0 and True are one key.
func (d *Dict) lookup(key Value) int {
	if s, ok := key.(string); ok {
		return d.find(s)
	}
	for i, k := range d.keys {
		if _, ok := k.(string); !ok && keysEqual(k, key) {
			return i
		}
	}
	return -1
}

func (d *Dict) setAny(key, v Value) {
	i := d.lookup(key)
	if i >= 0 {
		d.vals[i] = v
		return
	}
	d.add(key, v)
}

// Remember marks d as a message: loops over marked messages remember what came of each, in
// at most limit bytes for this one. It returns d.
func (d *Dict) Remember(limit int) *Dict {
	d.memory = &memory{limit: limit}
	return d
}

// Size is about how many bytes v takes. What is remembered is not counted.
func Size(v Value) int {
	n := 16
	switch v := v.(type) {
	case string:
		n += len(v)
	case int, float64:
		n += 8
	case *List:
		n += 32
		for _, e := range v.Items {
			n += Size(e)
		}
	case *Dict:
		n += 64
		if v.index != nil {
			n += 48 * len(v.keys)
		}
		for i, k := range v.keys {
			n += Size(k) + Size(v.vals[i])
		}
	}
	return n
}

// Forget returns a copy of d that is not marked. The copy shares the values.
func (d *Dict) Forget() *Dict {
	c := NewDict(d.Len() + 1)
	for i, k := range d.keys {
		c.add(k, d.vals[i])
	}
	return c
}

// memory is what loops remember of one message.
type memory struct {
	// mu guards loops and all nodes below. It is held while one turn of a loop is looked up
	// or recorded; no other lock is taken meanwhile.
	mu    sync.Mutex
	loops []loopMemory
	// used is about how many bytes the trees and pieces take, at most limit.
	used, limit int
}

// undefined is Jinja's Undefined: what a name or an attribute that is not there gives.
type undefined struct{ name string }

// namespace is Jinja's namespace object, the one thing that a template may change.
type namespace struct{ attrs *Dict }

// method is a bound method that was not called yet.
type method struct {
	recv Value
	name string
}

// builtin is a global function.
type builtin struct {
	name string
	call func(r *run, args []Value, kwargs []kwarg) Value
}

// generator is what filters like map return: it can be run through once. If making its
// items failed, err is met after the items.
type generator struct {
	items []Value
	err   error
	pos   int
}

// view is what dict.items, keys and values return.
type view struct {
	name  string
	items []Value
}

// span is Python's range.
type span struct{ start, stop, step int }

func (s span) len() int {
	switch {
	case s.step > 0 && s.start < s.stop:
		return (s.stop-s.start-1)/s.step + 1
	case s.step < 0 && s.start > s.stop:
		return (s.start-s.stop-1)/-s.step + 1
	}
	return 0
}

// markup is what the filter safe makes of a text: it prints and joins by ~ as the text does.
// Whatever else is done with it is refused, since Python then escapes what meets it.
type markup struct{ text string }

type kwarg struct {
	name string
	v    Value
}

// is says whether a value is of a kind.
func is[T any](v Value) bool {
	_, ok := v.(T)
	return ok
}

// typeName is Python's name of a value's type, for errors.
func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case *List:
		if v.tuple {
			return "tuple"
		}
		return "list"
	case *Dict:
		return "dict"
	case *undefined:
		return "Undefined"
	case *namespace:
		return "Namespace"
	case *generator:
		return "generator"
	case *view:
		return v.name
	case span:
		return "range"
	case markup:
		return "Markup"
	}
	return "object"
}

// truth is Python's bool().
func truth(v Value) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v.text != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return v.Len() > 0
	case *undefined:
		return false
	case *view:
		return len(v.items) > 0
	case span:
		return v.len() > 0
	}
	return true
}
