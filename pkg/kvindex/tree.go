package kvindex

import (
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
	// MaxBytes bounds the memory of the index. Default 512 MiB, enough for some
	// 10 million blocks held, at 40 to 60 bytes each. A process beside Envoy is
	// given a GiB or two: too small an index forgets the oldest and says so
	// (Stats.Shed), one that is larger than its container is killed and forgets
	// all. Higher: larger pools are known as a whole. Address space of eight
	// times as much is reserved at once, memory is taken as it is needed, at
	// least 6 KiB a rank. From 1 MiB to 8 GiB; elsewhere than on 64-bit Linux to
	// 64 MiB, which is the default there.
	MaxBytes int
	// NoHugePages leaves the size of pages to the system. Huge pages are asked
	// for otherwise: random reads of a large index are faster with them, and a
	// small one takes up to 10 MiB.
	NoHugePages bool
	// Route says how long what was routed is believed to be held.
	Route RouteConfig
}

// LeastBytes is the least memory that an index may be given.
const LeastBytes = 1 << 20

const (
	blockBytes = 16
	nodeBytes  = int(unsafe.Sizeof(node{}))
	unitBytes  = int(unsafe.Sizeof(unit{}))
)

func (c TreeConfig) withDefaults() TreeConfig {
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
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

// Tree is the fast implementation of [Index]: a radix tree over block hashes in
// memory that the collector does not look at. See the package comment.
type Tree struct {
	cfg   TreeConfig // read-only
	slots *Slots
	seed  uint64 // of the children's table; read-only

	// Queries read what is atomic in these without a lock; see node.
	blocks    runs
	nodes     []node
	units     []unit
	kidShards [kidShards]kidShard

	// mu is held by whoever changes anything. Taken before Slots.mu, never
	// after it. Queries do not take it.
	mu        sync.Mutex
	ranks     map[worker.Rank]*treeRank
	last      *treeRank // the rank of the event before, which is likely the next one's
	names     nameStore
	nodeIDs   pool
	unitIDs   [][]uint32 // free units by how many in a row
	unitNext  uint32
	unitsUsed int
	kidBytes  int
	beside    int    // bytes that Reserve counts
	clock     uint32 // counts stores
	time      timeline
	sent      sendings
	strangers int // ranks that are not attached
	tooMany   int // of them
	fresh     []Block
	plan      []blockID
	gain      [numViews]Slot
	seen      []EngineHash
	work      sorter
	touched   uint32 // sum of what was read ahead, so that it is read
	sweep     sweep
	victims   []*treeRank // who is shed from next
	shedding  bool        // between the marks of pressed
	credit    int         // events that may be stored before pressed looks again
	reliefs   uint64      // counts events that shed; from 1
	stuck     int         // bytes taken that giving back does not bring below
	calm      *sync.Cond  // of mu: a rank is no longer busy
	busy      int         // ranks that are

	torn    atomic.Uint64 // queries that found writers in their way at every try
	between func()        // see step; set before use
	gaveUp  func()        // see giveUp; set before use
}

// treeRank is what one rank holds.
type treeRank struct {
	rank  worker.Rank
	slot  Slot
	views []treeView // those it needs so far, OnDevice first
	names names
	stats Stats // Invariant: I6
	// busy: somebody changes the rank in slices and has given up mu between two
	// of them. Others who want to change it, or Check, wait for calm.
	busy bool

	barren  uint64 // the relief whose sweeps found nothing to shed here, and
	barrens int    // how many

	attached bool // else only routing names it
	sent     routed

	// The last block stored, likely the next one's parent.
	lastName  EngineHash
	lastBlock blockID // 0: unknown
}

// treeView is one of a rank's views of the blocks that it has names for.
type treeView struct {
	view  View
	slot  Slot
	extra map[blockID]uint32 // blocks with several names that count: how many beyond one. Invariant: I3
	// making: what the rank held before the view was needed is being entered; names
	// whose mixed hash is below next are. Nodes not entered have no number in it.
	making bool
	next   uint64
}

var _ Index = (*Tree)(nil)

// NewTree returns an empty index that numbers its ranks with slots. It needs no
// closing: its memory goes when nothing refers to it.
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

// reserve takes the address space. Each arena alone could use up the budget and
// more, so that the budget is what ends first.
func (t *Tree) reserve() error {
	huge, bytes := !t.cfg.NoHugePages, t.cfg.MaxBytes
	blocks := min(bytes/blockBytes, maxBlocks)
	local, err1 := newArena[atomic.Uint64](blocks, huge)
	meta, err2 := newArena[uint64](blocks, huge)
	nodes, err3 := newArena[node](blocks+1, huge)            // each has a block
	units, err4 := newArena[unit](2*bytes/unitBytes+1, huge) // lists of other lengths cannot use each other's
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

// Attach implements [Index]. Events of a rank beyond the limit of slots are
// refused with ErrNoRoom.
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

// newRank makes a rank known.
func (t *Tree) newRank(r worker.Rank) *treeRank {
	rk := &treeRank{rank: r, slot: t.slots.acquire(r)}
	rk.views = []treeView{{slot: rk.slot}}
	t.ranks[r] = rk
	t.credit = 0 // it may take more to store in a crowd
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

// lose forgets a rank with all it has.
func (t *Tree) lose(rk *treeRank) {
	t.clearRank(rk)
	delete(t.ranks, rk.rank)
	t.last = nil
	t.slots.release(rk.slot)
	if !rk.attached {
		t.strangers--
	}
}

// rank returns an attached rank, nil if it is not; mu is held.
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

// known returns a rank that is attached or that routing names, as idle does.
func (t *Tree) known(r worker.Rank) *treeRank {
	for {
		rk := t.ranks[r]
		if rk == nil || !rk.busy {
			return rk
		}
		t.calm.Wait()
	}
}

// idle returns an attached rank that nobody is in the middle of changing, nil
// if it is not attached; mu is held, and given up while it has to wait.
func (t *Tree) idle(r worker.Rank) *treeRank {
	for {
		rk := t.rank(r)
		if rk == nil || !rk.busy {
			return rk
		}
		t.calm.Wait()
	}
}

// allIdle waits until that is so of every rank.
func (t *Tree) allIdle() {
	for t.busy > 0 {
		t.calm.Wait()
	}
}

// begin makes the rank busy, finish undoes it.
func (t *Tree) begin(rk *treeRank) {
	rk.busy = true
	t.busy++
}

func (t *Tree) finish(rk *treeRank) {
	rk.busy = false
	t.busy--
	t.calm.Broadcast()
}

// giveUp lets others have the lock. What is not of a busy rank may be another
// after it.
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
