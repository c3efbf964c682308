package overlap

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Config is what a Lookup reads. All but Tells are required.
type Config struct {
	Index  kvindex.Index   // what the workers tell
	Routed *kvindex.Routed // what was routed before
	Slots  *kvindex.Slots  // the numbering that both share
	// Tells reports whether events of a rank arrive although its worker names
	// no stream. Optional; when its answer changes, Forget is called.
	Tells func(worker.Rank) bool
}

// Validate returns every fault of the configuration, joined, or nil.
func (c Config) Validate() error {
	var errs []error
	if c.Index == nil {
		errs = append(errs, errors.New("overlap: index: expected one"))
	}
	if c.Routed == nil {
		errs = append(errs, errors.New("overlap: routed: expected one"))
	}
	if c.Slots == nil {
		errs = append(errs, errors.New("overlap: slots: expected those of the indexes"))
	}
	return errors.Join(errs...)
}

// Lookup finds overlaps. Safe for concurrent use.
type Lookup struct {
	cfg   Config // read-only
	known atomic.Pointer[layouts]
}

// New returns a Lookup. The error names every fault of cfg.
func New(cfg Config) (*Lookup, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := &Lookup{cfg: cfg}
	l.known.Store(new(layouts))
	return l, nil
}

// Forget makes the next question see who tells what it holds anew.
func (l *Lookup) Forget() { l.known.Store(new(layouts)) }

// Prompt is the blocks of a prompt.
type Prompt struct {
	Hashes        []kvindex.LocalHash
	BlocksPerHash int  // KV blocks that each hash stands for; 0 counts as 1
	Estimated     bool // the hashes are not those of tokens
}

// Answer is what the ranks hold. The caller owns it and reuses it: the zero
// value is ready. Not safe for concurrent use.
type Answer struct {
	// Blocks runs parallel to the ranks; nil: nobody holds anything. It may be
	// the memory of the index's answer, and is good until the next question.
	Blocks []uint32
	// Host and Disk are what they hold in host memory beyond Blocks, and on disk
	// beyond both; nil: nobody does, as of an estimated prompt.
	Host, Disk []uint32
	// Guessed marks the ranks whose count is what was routed to them, not what
	// they told; nil: none. It is shared and must not be written to. Of an
	// estimated prompt every count is a guess, and nobody is marked.
	Guessed picker.Bits

	told, routed     kvindex.Overlap
	copied           []uint32
	host, disk, both []uint32
}

// maxReads bounds how often an answer is read again because the numbering has
// changed meanwhile. A wrong overlap makes a worse pick, not a wrong one.
const maxReads = 3

// Of fills dst with what each of ranks, a list of the snapshot's pools, holds of
// the prompt. It keeps nothing of its arguments but the snapshot.
func (l *Lookup) Of(snap *worker.Snapshot, ranks []worker.Rank, p Prompt, now time.Time, dst *Answer) {
	dst.Blocks, dst.Host, dst.Disk, dst.Guessed = nil, nil, nil, nil
	if len(p.Hashes) == 0 || len(ranks) == 0 {
		return
	}
	for range maxReads {
		generation := l.cfg.Slots.Generation()
		at := l.layout(snap, ranks, generation)
		l.read(at, p, now, dst)
		dst.readTiers(at, p.Estimated)
		if l.cfg.Slots.Generation() == generation {
			return
		}
	}
}

func (l *Lookup) read(at *layout, p Prompt, now time.Time, dst *Answer) {
	dst.Guessed = nil
	guesses := at.guesses
	if p.Estimated {
		guesses = at.n
	}
	factor := uint32(max(p.BlocksPerHash, 1))
	if guesses < at.n {
		l.cfg.Index.Overlap(p.Hashes, &dst.told)
	}
	if guesses > 0 {
		l.cfg.Routed.Overlap(p.Hashes, &dst.routed, now)
	}
	switch {
	case guesses == 0:
		dst.Blocks = whole(at.told, at.n, dst.told.Blocks)
	case guesses == at.n && factor == 1:
		dst.Blocks = whole(at.all, at.n, dst.routed.Blocks)
	}
	if guesses > 0 && !p.Estimated {
		dst.Guessed = at.guess
	}
	if dst.Blocks != nil {
		return
	}
	dst.copied = sized(dst.copied, at.n)
	clear(dst.copied)
	if guesses == at.n {
		gather(dst.copied, at.all, dst.routed.Blocks, factor)
	} else {
		gather(dst.copied, at.told, dst.told.Blocks, 1)
		gather(dst.copied, at.guessed, dst.routed.Blocks, factor)
	}
	dst.Blocks = dst.copied
}

// readTiers fills in what is held below the device.
func (a *Answer) readTiers(at *layout, estimated bool) {
	a.Host, a.Disk = nil, nil
	if estimated || len(at.host)+len(at.disk) == 0 {
		return
	}
	counted := a.Blocks
	if len(at.host) > 0 {
		a.host = sized(a.host, at.n)
		if beyond(a.host, counted, at.host, a.told.Blocks) {
			a.Host = a.host
		}
	}
	if len(at.disk) == 0 {
		return
	}
	if a.Host != nil {
		a.both = sized(a.both, at.n)
		for i, n := range a.Host {
			a.both[i] = counted[i] + n
		}
		counted = a.both
	}
	a.disk = sized(a.disk, at.n)
	if beyond(a.disk, counted, at.disk, a.told.Blocks) {
		a.Disk = a.disk
	}
}

// sized returns memory for n numbers, whatever they are.
func sized(s []uint32, n int) []uint32 {
	if cap(s) < n {
		return make([]uint32, n)
	}
	return s[:n]
}

// layout returns that of a list of ranks.
func (l *Lookup) layout(snap *worker.Snapshot, ranks []worker.Rank, generation uint64) *layout {
	set := l.known.Load()
	if set.snap != snap || set.generation != generation {
		set = &layouts{snap: snap, generation: generation}
		l.known.Store(set)
	}
	if v, ok := set.byFirst.Load(&ranks[0]); ok && v.(*layout).n == len(ranks) {
		return v.(*layout)
	}
	made := newLayout(snap, ranks, l.cfg.Slots, l.cfg.Tells)
	set.byFirst.Store(&ranks[0], made)
	return made
}
