package kvindex

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TreeConfig configures a [Tree]. The zero value is the documented default.
type TreeConfig struct {
	// MaxBytes bounds the memory of the index. Default 512 MiB, enough for some 10
	// million blocks at 40 to 60 bytes each. An index that is too small drops the
	// oldest blocks and counts them (Stats.Shed). An index that is larger than its
	// container is killed with its process and loses everything, and the process beside
	// Envoy usually has a GiB or two. A higher value keeps the blocks of larger pools.
	// Address space of eight times MaxBytes is reserved at once; memory is taken as it
	// is needed, at least 6 KiB a rank. From 1 MiB to 8 GiB. On other systems than
	// 64-bit Linux at most 64 MiB, which is then the default.
	MaxBytes int
	// NoHugePages leaves the size of pages to the system. By default the index asks for
	// huge pages: they make random reads of a large index faster, but even a small
	// index then takes up to 10 MiB.
	NoHugePages bool
	// Route limits for how long, and how many, routed prompts are believed to be held.
	Route RouteConfig
}

// LeastBytes is the least value of TreeConfig.MaxBytes, apart from 0.
const LeastBytes = 1 << 20

const (
	blockBytes = 16
	nodeBytes  = int(unsafe.Sizeof(node{}))
	unitBytes  = int(unsafe.Sizeof(unit{}))
)

func (c TreeConfig) withDefaults() TreeConfig {
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	c.Route = c.Route.withDefaults()
	return c
}

// Validate returns every fault of the configuration, joined, or nil.
func (c TreeConfig) Validate() error {
	var errs []error
	if c.MaxBytes != 0 && (c.MaxBytes < LeastBytes || c.MaxBytes > MostBytes) {
		errs = append(errs, fmt.Errorf("kvindex: max bytes %d: expected %d to %d", c.MaxBytes, LeastBytes, MostBytes))
	}
	return errors.Join(append(errs, c.Route.Validate())...)
}

// Tree is the fast implementation of [Index]: a radix tree over block hashes, in memory
// that the garbage collector does not scan. See the package comment.
type Tree struct {
	cfg   TreeConfig // read-only
	slots *Slots
	seed  uint64 // of the hash of the children's table; read-only

	// Queries read the atomic words of these fields without a lock; see node.
	blocks    runs
	nodes     []node
	units     []unit
	kidShards [kidShards]kidShard

	// mu is held for every change, and by the methods that read the fields below. It is
	// taken before Slots.mu, never after it. Queries do not take it.
	mu        sync.Mutex
	ranks     map[worker.Rank]*treeRank
	last      *treeRank // the rank of the last event, likely the rank of the next one
	names     nameStore
	nodeIDs   pool
	unitIDs   [][]uint32 // free units; unitIDs[n] lists those of n units in a row
	unitNext  uint32
	unitsUsed int
	kidBytes  int
	beside    int    // bytes counted by Reserve
	clock     uint32 // counts stores
	time      timeline
	sent      sendings
	strangers int // ranks that are known but not attached
	tooMany   int // as many strangers make adopt look for those with nothing left
	fresh     []Block
	plan      []blockID
	gain      [numViews]Slot
	seen      []EngineHash
	work      sorter
	touched   uint32 // sum of words that were read ahead; keeps the compiler from leaving out the reads
	sweep     sweep
	victims   []*treeRank // the ranks that the next sweeps shed from, last first
	shedding  bool        // shedding has begun at the high mark and has not reached the low one; see pressed
	credit    int         // events that may be stored before pressed computes again
	reliefs   uint64      // counts calls that shed; the first is 1
	stuck     int         // giveBack found nothing: it is not tried again before more bytes are taken than this
	calm      *sync.Cond  // signals that a rank is no longer busy; uses mu

	removals atomic.Uint64 // blocks that events took off Device, and clears; written under mu

	torn    atomic.Uint64 // queries that were torn at every try and took mu
	between func()        // see step; set before use
	gaveUp  func()        // see giveUp; set before use
}

// treeRank is the state of one rank.
type treeRank struct {
	rank  worker.Rank
	slot  Slot
	views []treeView // the views that the rank has needed so far, OnDevice first
	names names
	stats Stats // Invariant: I6
	// busy says that a goroutine changes the rank in slices and may have given mu up
	// between two of them. Others that want to change the rank wait for calm.
	busy bool

	barren  uint64 // the value of Tree.reliefs when sweeps last found nothing to shed from this rank
	barrens int    // how many such sweeps there were in that relief

	gone     gone
	attached bool // false: only Route has named the rank
	sent     routed

	// The last block stored, likely the next one's parent.
	lastName  EngineHash
	lastBlock blockID // 0: unknown
}

// treeView is one view of a rank that events fill.
type treeView struct {
	view  View
	slot  Slot
	extra map[blockID]uint32 // for a block with several names that count: how many beyond the first. Invariant: I3
	// making says that the view is being filled with what the rank held before it
	// needed the view. Names whose mixed hash is below next are entered. A node that is
	// not entered has no number for the view's slot.
	making bool
	next   uint64
}

var _ Index = (*Tree)(nil)

// NewTree returns an empty index that numbers its ranks with slots. It needs no
// closing: the memory is freed when the Tree is garbage.
func NewTree(cfg TreeConfig, slots *Slots) (*Tree, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	t := &Tree{cfg: cfg, slots: slots, seed: rand.Uint64(), ranks: make(map[worker.Rank]*treeRank), unitNext: 1, sent: newSendings(), tooMany: minStrangers}
	t.names.seed = rand.Uint64()
	t.calm = sync.NewCond(&t.mu)
	if err := t.reserve(); err != nil {
		return nil, err
	}
	root := &t.nodes[0]
	root.place.Store(place(0, noParent))
	root.kids.Store(uint64(many))
	return t, nil
}

// reserve takes the address space. Each kind of data alone may use up the whole budget,
// so that the budget ends before any arena; only with more than 4 GiB the blocks end at
// maxBlocks.
func (t *Tree) reserve() error {
	huge, bytes := !t.cfg.NoHugePages, t.cfg.MaxBytes
	blocks := min(bytes/blockBytes, maxBlocks)
	local, err1 := newArena[atomic.Uint64](blocks, huge)
	meta, err2 := newArena[uint64](blocks, huge)
	nodes, err3 := newArena[node](blocks+1, huge)            // each node has at least one block
	units, err4 := newArena[unit](2*bytes/unitBytes+1, huge) // twice the budget, since a free list of one length cannot serve another
	segs, err5 := newArena[bucket]((bytes/segBytes+1)*segBuckets, huge)
	release := func() {
		for _, f := range []func(){local.release, meta.release, nodes.release, units.release, segs.release} {
			if f != nil {
				f()
			}
		}
	}
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		release()
		return err
	}
	t.blocks = newRuns(local.all, meta.all)
	t.nodes, t.units, t.names.buckets = nodes.all, units.all, segs.all
	runtime.AddCleanup(t, func(f func()) { f() }, release)
	return nil
}

// Attach implements [Index]. Store refuses the events of a rank beyond the limit of
// slots with ErrNoRoom.
func (t *Tree) Attach(r worker.Rank) Slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	rk := t.known(r)
	if rk == nil {
		rk = t.newRank(r)
	} else if !rk.attached {
		t.strangers--
	}
	rk.attached = true
	return rk.slot
}

// newRank adds a rank without blocks; mu is held.
func (t *Tree) newRank(r worker.Rank) *treeRank {
	rk := &treeRank{rank: r, slot: t.slots.acquire(r)}
	rk.views = []treeView{{slot: rk.slot}}
	t.ranks[r] = rk
	t.credit = 0 // with another slot, a store into a crowd may take more
	return rk
}

// Detach implements [Index].
func (t *Tree) Detach(r worker.Rank) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rk := t.known(r); rk != nil {
		t.lose(rk)
	}
}

// lose removes a rank with all its blocks; mu is held.
func (t *Tree) lose(rk *treeRank) {
	t.clearRank(rk)
	delete(t.ranks, rk.rank)
	t.last = nil
	t.slots.release(rk.slot)
	if !rk.attached {
		t.strangers--
	}
}

// rank returns an attached rank, or nil if r is not attached; mu is held.
func (t *Tree) rank(r worker.Rank) *treeRank {
	if t.last != nil && t.last.rank == r {
		return t.last
	}
	rk := t.ranks[r]
	if rk == nil || !rk.attached {
		return nil
	}
	t.last = rk
	return rk
}

// known returns a rank that is attached or known from Route, or nil. It waits while the
// rank is busy; mu is held, and given up while it waits.
func (t *Tree) known(r worker.Rank) *treeRank {
	for {
		rk := t.ranks[r]
		if rk == nil || !rk.busy {
			return rk
		}
		t.calm.Wait()
	}
}

// idle returns an attached rank that is not busy, or nil if r is not attached. It waits
// while the rank is busy; mu is held, and given up while it waits.
func (t *Tree) idle(r worker.Rank) *treeRank {
	for {
		rk := t.rank(r)
		if rk == nil || !rk.busy {
			return rk
		}
		t.calm.Wait()
	}
}

// finish ends that the rank is busy.
func (t *Tree) finish(rk *treeRank) {
	rk.busy = false
	t.calm.Broadcast()
}

// giveUp lets others have mu. Afterwards everything may have changed except what
// belongs to a busy rank.
func (t *Tree) giveUp() {
	t.mu.Unlock()
	if invariants.Enabled && t.gaveUp != nil {
		t.gaveUp()
	}
	runtime.Gosched()
	t.mu.Lock()
}

// Slot implements [Index].
func (t *Tree) Slot(r worker.Rank) (Slot, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rk := t.rank(r); rk != nil {
		return rk.slot, true
	}
	return 0, false
}

// Clear implements [Index].
func (t *Tree) Clear(r worker.Rank) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	rk := t.idle(r)
	if rk == nil {
		return ErrUnknownRank
	}
	t.clearRank(rk)
	rk.gone.all = t.removed()
	rk.stats.Clears++
	return nil
}

// Stats implements [Index].
func (t *Tree) Stats(r worker.Rank) (Stats, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rk := t.ranks[r]; rk != nil {
		return rk.stats, true
	}
	return Stats{}, false
}
