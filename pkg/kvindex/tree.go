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
	slots *Slots
	trie  trie // queries walk it without a lock

	// mu is held for every change, and by the methods that read the fields below. It is
	// taken before Slots.mu, never after it. Queries do not take it.
	mu       sync.Mutex
	ranks    ranks
	ledger   ledger
	prompts  prompts
	budget   budget
	eviction eviction
	work     sorter

	torn   atomic.Uint64 // queries that were torn at every try and took mu
	gaveUp func()        // see giveUp; set before use
}

var _ Index = (*Tree)(nil)

// NewTree returns an empty index that numbers its ranks with slots. It needs no
// closing: the memory is freed when the Tree is garbage.
func NewTree(cfg TreeConfig, slots *Slots) (*Tree, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	t := &Tree{slots: slots}
	if err := t.reserve(cfg.MaxBytes, !cfg.NoHugePages); err != nil {
		return nil, err
	}
	tr := &t.trie
	tr.kids.nodes, tr.kids.local, tr.kids.seed = tr.nodes, tr.blocks.local, rand.Uint64()
	tr.holders.slots, tr.holders.next = slots, 1
	t.ranks = ranks{slots: slots, calm: sync.NewCond(&t.mu), all: make(map[worker.Rank]*treeRank), tooMany: minStrangers}
	t.prompts = prompts{trie: tr, cfg: cfg.Route, share: cfg.MaxBytes / routedPart, sent: newSendings()}
	t.ledger.trie, t.ledger.prompts, t.ledger.names.seed = tr, &t.prompts, rand.Uint64()
	t.budget = budget{trie: tr, names: &t.ledger.names, slots: slots, max: cfg.MaxBytes}
	t.eviction = eviction{trie: tr, ledger: &t.ledger, prompts: &t.prompts, budget: &t.budget, ranks: &t.ranks}
	root := &tr.nodes[0]
	root.place.Store(place(0, noParent))
	root.kids.Store(uint64(many))
	return t, nil
}

// reserve takes the address space. Each kind of data alone may use up the whole budget,
// so that the budget ends before any arena; only with more than 4 GiB the blocks end at
// maxBlocks.
func (t *Tree) reserve(bytes int, huge bool) error {
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
	t.trie.blocks = newRuns(local.all, meta.all)
	t.trie.nodes, t.trie.holders.units, t.ledger.names.buckets = nodes.all, units.all, segs.all
	runtime.AddCleanup(t, func(f func()) { f() }, release)
	return nil
}

// Reserve implements [Index]. There is room for an eighth of the budget.
func (t *Tree) Reserve(bytes int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.budget.reserve(bytes) {
		return false
	}
	t.eviction.recount()
	return true
}

// Attach implements [Index]. Store refuses the events of a rank beyond the limit of
// slots with ErrNoRoom.
func (t *Tree) Attach(r worker.Rank) Slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	rk := t.ranks.known(r)
	if rk == nil {
		rk = t.newRank(r)
	}
	t.ranks.attach(rk)
	return rk.slot
}

// newRank adds a rank without blocks.
func (t *Tree) newRank(r worker.Rank) *treeRank {
	t.eviction.recount() // with another slot, a store into a crowd may take more
	return t.ranks.add(r)
}

// Detach implements [Index].
func (t *Tree) Detach(r worker.Rank) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rk := t.ranks.known(r); rk != nil {
		t.lose(rk)
	}
}

// lose removes a rank with all its blocks; mu is held.
func (t *Tree) lose(rk *treeRank) {
	t.clearRank(rk)
	t.ranks.remove(rk)
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
	if rk := t.ranks.attached(r); rk != nil {
		return rk.slot, true
	}
	return 0, false
}

// Clear implements [Index].
func (t *Tree) Clear(r worker.Rank) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	rk := t.ranks.idle(r)
	if rk == nil {
		return ErrUnknownRank
	}
	t.clearRank(rk)
	t.ledger.cleared(rk)
	return nil
}

// Stats implements [Index].
func (t *Tree) Stats(r worker.Rank) (Stats, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rk := t.ranks.all[r]; rk != nil {
		return rk.stats, true
	}
	return Stats{}, false
}
