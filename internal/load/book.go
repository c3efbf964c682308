package load

import (
	"errors"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/heap"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Errors that a caller may branch on. A pick that finds no rank returns the errors of
// picker.Pick; a saturated pool returns a *picker.SaturatedError.
var (
	// ErrUnknownRank: the rank has left or is not known yet.
	ErrUnknownRank = errors.New("load: unknown rank")

	// ErrCost: the pick would cost Request.MaxCost or more.
	ErrCost = errors.New("load: it would cost too much")

	// ErrReleased: the reservation holds no booking, or no longer.
	ErrReleased = errors.New("load: the reservation holds no booking")
	// ErrHeld: the reservation that should be filled still holds a booking.
	ErrHeld = errors.New("load: the reservation still holds a booking")
)

// Load is the work that one rank has been given and has not finished.
type Load struct {
	PrefillTokens   int64 // prompt tokens that are still to be computed
	PrefillBlocks   int64 // KV blocks of prompts being prefilled
	PrefillRequests int32 // prefill legs
	DecodeBlocks    int64 // KV blocks of running answers
	DecodeRequests  int32 // running answers
}

func (l *Load) add(d *Load, sign int64) {
	l.PrefillTokens += sign * d.PrefillTokens
	l.PrefillBlocks += sign * d.PrefillBlocks
	l.PrefillRequests += int32(sign) * d.PrefillRequests
	l.DecodeBlocks += sign * d.DecodeBlocks
	l.DecodeRequests += int32(sign) * d.DecodeRequests
}

func (l *Load) negative() bool {
	return l.PrefillTokens < 0 || l.PrefillBlocks < 0 || l.PrefillRequests < 0 || l.DecodeBlocks < 0 || l.DecodeRequests < 0
}

// Totals are sums over the whole book.
type Totals struct {
	Load
	Held           int    // bookings not released, including those of ranks that have left
	LateReleases   uint64 // releases after the booking's rank had left
	DoubleReleases uint64 // second releases of a booking: faults of this plugin
}

// Book has the load of every rank. Safe for concurrent use.
type Book struct {
	// mu guards the fields below. The package comment says what is called while it is
	// held.
	mu sync.Mutex

	rng     *rand.Rand
	cursors map[cursorKey]uint64
	flows   map[cursorKey]*flow // by the model that workers have loaded: an adapter's requests are work for them, too
	// handOffs are of the models of the present snapshot.
	handOffs map[worker.Key]HandOffs
	faded    time.Duration // up to when the sums of entry.lately have been made smaller

	// slots has the index of each rank's entry in entries. free has the unused indexes.
	entries []entry
	slots   map[worker.Rank]int32
	free    []int32

	// tables has the columns of the present snapshot's rank lists, by the address of a
	// list's first element. Lists of the same ranks share a table. before has the tables
	// of the previous snapshot, for requests that have read it and pick now. Ranks that
	// have left since are unknown there.
	tables, before map[*worker.Rank]*table
	round          uint64 // counts snapshots
	latest         *worker.Snapshot
	seed           maphash.Seed

	// epoch is the first time that a caller has passed. now is the latest, counted from
	// epoch.
	epoch time.Time
	now   time.Duration

	held, late, double uint64

	turns heap.Heap[*growingAnswer] // those whose phase will end

	// Of several replicas; see others.go.
	origins map[uint64]*origin // by the life of their process
	kick    chan struct{}      // see Stirred
	stirred []int32            // entries whose own bookings have changed since they were told
	ownSum  uint64             // of what was told
	number  uint64             // of the newest booking
	lasts   [2]lasting         // of prompts, and of answers

	changed []worker.ID // working memory of one pick
	work    int         // counted for tests; see workLocked
}

type cursorKey struct {
	key  worker.Key
	role worker.Role
}

// entry is one rank. Invariant: load is the sum of the held bookings of its generation and of what others
// have told, and queue has those among them with prompt tokens, oldest first, but for behind.
type entry struct {
	rank       worker.Rank
	generation uint64 // increased whenever the entry's rank leaves
	endpoint   worker.Endpoint
	worker     *worker.Worker // nil if the rank is not present
	base       worker.Key     // of the worker
	capacity   float64        // KV blocks; 0: unknown
	present    bool
	degraded   bool
	load       Load
	queue      queue
	pace       picker.Pace
	foreign    foreign
	flow       *flow // what has come to the pool of its last pick; nil: none
	writing    picker.Writing
	lately     float64 // seconds of work that have come, older ones counting less; see computesLocked
	answers    answers // of the held bookings
	over       float64 // blocks that answers which are over were expected to write
	written    written
	correction correction
	places     []place

	others  []other
	behind  int32 // prompts of others that are in load, and not in queue
	stirred bool  // it is in Book.stirred
	told    Load  // what Tell has told last
}

// place is the position of a rank in a table.
type place struct {
	t  *table
	at int32
}

// New returns an empty book. Equal seeds give equal draws; 0 means a random seed.
func New(seed uint64) *Book {
	if seed == 0 {
		seed = rand.Uint64()
	}
	return &Book{
		rng:      rand.New(rand.NewPCG(seed, seed)),
		cursors:  make(map[cursorKey]uint64),
		flows:    make(map[cursorKey]*flow),
		handOffs: make(map[worker.Key]HandOffs),
		slots:    make(map[worker.Rank]int32),
		origins:  make(map[uint64]*origin),
		kick:     make(chan struct{}, 1),
		seed:     maphash.MakeSeed(),
	}
}

// Update sets the ranks of s as the known ones, including those of draining workers, and
// drops the load of all others. Ranks that stay keep their load.
func (b *Book) Update(s *worker.Snapshot) {
	lists := b.listsOf(s)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.round++
	var w *worker.Worker // of the entry before: the ranks of a worker mostly follow each other
	for i := range b.entries {
		e := &b.entries[i]
		e.places = slices.DeleteFunc(e.places, func(p place) bool { return p.t.round+1 < b.round })
		if !e.present {
			continue
		}
		if w == nil || w.ID != e.rank.ID {
			w = s.Worker(e.rank.ID)
		}
		if w == nil || uint32(e.rank.DPRank) >= w.DPSize || w.Endpoint != e.endpoint {
			b.dropLocked(int32(i))
		}
	}
	slot := int32(-1)
	for _, w := range s.Workers() {
		for dp := range w.DPSize {
			slot = b.attachLocked(worker.Rank{ID: w.ID, DPRank: worker.DPRank(dp)}, w, slot)
		}
	}
	b.layLocked(lists)
	for _, tables := range [...]map[*worker.Rank]*table{b.tables, b.before} {
		for _, t := range tables {
			clear(t.carriers) // workers may have other taints now
		}
	}
	for k := range b.cursors {
		if s.Pool(k.key) == nil {
			delete(b.cursors, k)
		}
	}
	for k, f := range b.flows {
		p := s.Pool(k.key)
		if p == nil {
			delete(b.flows, k)
		} else {
			f.ranks = len(p.Ranks(k.role))
		}
	}
	b.latest = s
	maps.DeleteFunc(b.handOffs, func(k worker.Key, _ HandOffs) bool { return s.Pool(k) == nil })
}

func (b *Book) dropLocked(slot int32) {
	e := &b.entries[slot]
	delete(b.slots, e.rank)
	for _, p := range e.places {
		p.t.forget(int(p.at))
	}
	b.ownSum ^= checksum(e.rank, &e.told)
	for i := range e.others {
		k := &e.others[i]
		b.origins[k.life].sum ^= checksum(e.rank, &k.told.Load)
	}
	*e = entry{generation: e.generation + 1, places: e.places[:0], stirred: e.stirred}
	b.free = append(b.free, slot)
}

// attachLocked makes a rank known and returns its slot. before is the slot of the rank
// before it.
func (b *Book) attachLocked(r worker.Rank, w *worker.Worker, before int32) int32 {
	slot := b.slotAfterLocked(before, r)
	if slot < 0 {
		if n := len(b.free); n > 0 {
			slot, b.free = b.free[n-1], b.free[:n-1]
		} else {
			slot = int32(len(b.entries))
			b.entries = append(b.entries, entry{})
		}
		b.slots[r] = slot
	}
	e := &b.entries[slot]
	if !e.present {
		e.pace, e.writing = picker.Unlearned(), picker.UnlearnedWriting()
	}
	if e.worker != w { // with many adapters Base takes its time
		e.worker, e.base = w, w.Base()
	}
	e.rank, e.endpoint, e.capacity, e.present = r, w.Endpoint, float64(w.CapacityBlocks), true
	for _, p := range e.places {
		p.t.cols.Capacity[p.at] = e.capacity
	}
	return slot
}

// slotLocked returns -1 for an unknown rank.
func (b *Book) slotLocked(r worker.Rank) int32 {
	if slot, ok := b.slots[r]; ok {
		return slot
	}
	return -1
}

// slotAfterLocked is slotLocked for ranks of a list, of which before is the slot of the one
// before, or -1. The ranks of a worker mostly have entries in a row: these need no look-up,
// which takes most of an Update's time.
func (b *Book) slotAfterLocked(before int32, r worker.Rank) int32 {
	if next := before + 1; int(next) < len(b.entries) && b.entries[next].present && b.entries[next].rank == r {
		return next
	}
	return b.slotLocked(r)
}

// grownLocked brings answers up to the given time and returns the rank's entry, or nil
// for an unknown rank.
func (b *Book) grownLocked(r worker.Rank, at time.Time) *entry {
	slot := b.slotLocked(r)
	if slot < 0 {
		return nil
	}
	b.tellLocked(at)
	b.growLocked()
	return &b.entries[slot]
}

// SetDegraded notes whether some of the rank's KV events are missing. The overlap of a
// degraded rank counts for less (picker.Params). Unknown ranks are ignored. A new rank is
// not degraded.
func (b *Book) SetDegraded(r worker.Rank, degraded bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slot := b.slotLocked(r); slot >= 0 {
		e := &b.entries[slot]
		e.degraded = degraded
		for _, p := range e.places {
			p.t.setDegraded(int(p.at), degraded)
		}
	}
}

// Load returns what this book itself has booked on a rank. False means that the book does not know the rank.
func (b *Book) Load(r worker.Rank) (own Load, known bool) {
	own, _, known = b.loads(r)
	return own, known
}

// LoadOfAll returns what is booked on a rank, as a pick counts it: what other replicas have booked included.
func (b *Book) LoadOfAll(r worker.Rank) Load {
	_, all, _ := b.loads(r)
	return all
}

func (b *Book) loads(r worker.Rank) (own, all Load, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	slot := b.slotLocked(r)
	if slot < 0 {
		return own, all, false
	}
	return b.entries[slot].own(), b.entries[slot].load, true
}

// Totals sums what this book itself has booked.
func (b *Book) Totals() Totals {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := Totals{Held: int(b.held), LateReleases: b.late, DoubleReleases: b.double}
	for i := range b.entries {
		own := b.entries[i].own()
		t.add(&own, 1)
	}
	return t
}

// QueuedISLTokens returns the sum of prompt tokens that are booked on the ranks and not
// done at the given time. Only ranks count that the book knows and f allows; a nil f
// allows all. Request.MaxQueuedISLTokens is compared with this number.
func (b *Book) QueuedISLTokens(ranks []worker.Rank, f Filter, now time.Time) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(ranks) == 0 {
		return 0
	}
	b.tellLocked(now)
	t := b.tableLocked(ranks)
	t.refresh(b.now)
	t.bar(b, &Request{Filter: f}, false)
	return picker.QueuedTokens(&t.cols)
}
