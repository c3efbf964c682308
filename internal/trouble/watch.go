package trouble

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// Calm is for how long a trouble has to be away until it has ended.
	Calm = 4 * time.Second
	// MostOfKind bounds the troubles of one kind that are held.
	MostOfKind = 64
)

// name names a trouble.
type name struct {
	kind    Kind
	subject string
}

func nameOf(t *Trouble) name { return name{t.Kind, t.Subject} }

// seen is a trouble that a watch knows.
type seen struct {
	Trouble
	last time.Time
}

// Watch compares the troubles of one moment with those of the moments before. The zero value is
// ready. Not safe for concurrent use.
type Watch struct{ known map[name]*seen }

// Look takes the troubles of now, and sets Since where it is not known. It returns those that have
// begun, and those that have ended.
func (w *Watch) Look(ts []Trouble, now time.Time) (begun, ended []Trouble) {
	if w.known == nil {
		w.known = make(map[name]*seen)
	}
	of := make(map[Kind]int)
	for k := range w.known {
		of[k.kind]++
	}
	for i := range ts {
		t := &ts[i]
		k := w.known[nameOf(t)]
		if k == nil {
			if t.Since.IsZero() {
				t.Since = now
			}
			if of[t.Kind] >= MostOfKind {
				continue
			}
			of[t.Kind]++
			w.known[nameOf(t)] = &seen{*t, now}
			begun = append(begun, *t)
			continue
		}
		if t.Since.IsZero() {
			t.Since = k.Since
		}
		k.Trouble, k.last = *t, now
	}
	for n, k := range w.known {
		away := now.Sub(k.last)
		if away >= Calm || away < 0 { // below 0: the clock was set back
			delete(w.known, n)
			ended = append(ended, k.Trouble)
		}
	}
	Sort(ended)
	return begun, ended
}

// Board holds troubles that parts have put there. The zero value is ready. Safe for concurrent use.
type Board struct {
	mu  sync.Mutex
	has map[name]Trouble // guarded by mu
}

// Put adds the trouble, or replaces the one of its name, which keeps its Since.
func (b *Board) Put(t Trouble, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has == nil {
		b.has = make(map[name]Trouble)
	}
	was, held := b.has[nameOf(&t)]
	t.Since = now
	if held {
		t.Since = was.Since
	} else if b.ofLocked(t.Kind) >= MostOfKind {
		return
	}
	b.has[nameOf(&t)] = t
}

func (b *Board) ofLocked(k Kind) (n int) {
	for x := range b.has {
		if x.kind == k {
			n++
		}
	}
	return n
}

// Take removes the trouble of the name.
func (b *Board) Take(k Kind, subject string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.has, name{k, subject})
}

// Set puts the trouble while what is not empty, and takes it off when it is.
func (b *Board) Set(k Kind, subject, what string, now time.Time) {
	if what == "" {
		b.Take(k, subject)
		return
	}
	b.Put(Trouble{Kind: k, Subject: subject, What: what}, now)
}

// List returns all of them, by subject within their kind.
func (b *Board) List() []Trouble {
	b.mu.Lock()
	defer b.mu.Unlock()
	ts := slices.Collect(maps.Values(b.has))
	slices.SortFunc(ts, func(x, y Trouble) int { return strings.Compare(x.Subject, y.Subject) })
	Sort(ts)
	return ts
}
