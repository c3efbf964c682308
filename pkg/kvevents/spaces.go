package kvevents

import (
	"maps"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// spaces holds facts about blocks that are not plain: the hash seed of blocks with a
// cache salt, which engines name with the first block of a prompt only, and which blocks
// are left out of the index because they depend on something that cannot be read. A block
// that follows another takes both from its parent.
//
// An entry stays for as long as the engine has the block, and clients choose the salts.
// So the memory counts in the index's budget: reserve is called before memory is taken.
type spaces struct {
	reserve func(bytes int) bool // see Decoder.Budget; nil: no budget
	blocks  map[kvindex.EngineHash]space
	peak    int // entries that memory is reserved for
	left    int // entries of blocks that are left out of the index
}

// spaceBytes is more than the memory for one entry of a map that is half empty.
const spaceBytes = 64

// leastSpaces is the least number of entries that memory is reserved for.
const leastSpaces = 64

type space struct {
	seed  uint64 // hash seed of its salt and adapter; 0 for a block that is left out
	tiers uint8  // a bit for each tier that has the block
	kind  spaceKind
}

type spaceKind uint8

const (
	salted    spaceKind = iota
	ambiguous           // stored under several salts: blocks that follow it are left out
	unread              // left out: depends on something that cannot be read
	unsure              // left out: follows an ambiguous block
	doubled             // stored under several adapters, of which the index has the first
)

// out returns why a block of this kind is left out. False means that it is not.
func (k spaceKind) out() (Reason, bool) {
	switch k {
	case unread:
		return ExtraKeys, true
	case unsure:
		return AmbiguousSalt, true
	}
	return 0, false
}

// followers returns the kind of a block whose parent is of kind k. ownSalt says that the
// block names its own salt; after an ambiguous parent it is then not left out. out says
// that the block is left out.
func (k spaceKind) followers(ownSalt bool) (kind spaceKind, out bool) {
	switch _, out := k.out(); {
	case out:
		return k, true
	case k == ambiguous && !ownSalt:
		return unsure, true
	}
	return salted, false
}

// note records that blocks of space sp were stored on a tier. False means that there is
// no memory for it; then none of them is recorded.
func (s *spaces) note(blocks []kvindex.EngineHash, sp space, t kvindex.Tier) bool {
	if !s.room(len(blocks)) {
		return false
	}
	for _, h := range blocks {
		s.put(h, sp, t)
	}
	return true
}

// put records one block, for which there is room.
func (s *spaces) put(h kvindex.EngineHash, sp space, t kvindex.Tier) {
	held, known := s.blocks[h]
	if held.kind != salted {
		s.left--
	}
	now := space{seed: sp.seed, kind: sp.kind, tiers: held.tiers | 1<<t}
	if known && held.kind <= ambiguous && sp.kind == salted && (held.kind == ambiguous || held.seed != sp.seed) {
		now.kind, now.seed = ambiguous, held.seed
	}
	if now.kind != salted {
		s.left++
	}
	s.blocks[h] = now
}

// resume records what was known of blocks before a restart. Without memory for them
// nothing is recorded: then later blocks that follow a salted one match no salted prompt.
func (s *spaces) resume(blocks []kvindex.EngineHash, sp space) {
	if sp.kind > doubled || !s.room(len(blocks)) {
		return
	}
	for _, h := range blocks {
		s.blocks[h] = sp
		if sp.kind != salted {
			s.left++
		}
	}
}

// noteBare records that blocks were stored without a salt. A block that was noted with
// one becomes ambiguous.
func (s *spaces) noteBare(blocks []kvindex.EngineHash, seed uint64, t kvindex.Tier) {
	if len(s.blocks) == 0 {
		return
	}
	for _, h := range blocks {
		switch held, known := s.blocks[h]; {
		case held.kind == doubled:
			s.double(h, t)
		case known: // its entry takes no more memory
			s.put(h, space{seed: seed}, t)
		}
	}
}

// double records that a block was stored whose hash names another block in the index. If
// one of them has a salt, which of them a later block follows is not known.
func (s *spaces) double(h kvindex.EngineHash, t kvindex.Tier) {
	held, known := s.blocks[h]
	if held.kind == salted {
		held.kind = doubled
		if known {
			held.kind = ambiguous
		}
		s.left++
	}
	held.tiers |= 1 << t
	s.blocks[h] = held
}

// take records that blocks are no longer on a tier.
func (s *spaces) take(blocks []kvindex.EngineHash, t kvindex.Tier) {
	if len(s.blocks) == 0 {
		return
	}
	for _, h := range blocks {
		held, known := s.blocks[h]
		if !known {
			continue
		}
		held.tiers &^= 1 << t
		if held.tiers != 0 {
			s.blocks[h] = held
			continue
		}
		if held.kind != salted {
			s.left--
		}
		delete(s.blocks, h)
	}
	s.shrink()
}

// room reserves memory for n more entries. False means that the budget has none.
func (s *spaces) room(n int) bool {
	if s.blocks == nil {
		s.blocks = make(map[kvindex.EngineHash]space)
	}
	if want := len(s.blocks) + n; want > s.peak {
		more := max(want-s.peak, leastSpaces)
		if s.reserve != nil && !s.reserve(more*spaceBytes) {
			return false
		}
		s.peak += more
	}
	return true
}

// shrink gives memory back when most of it is unused. It makes a new map, since a map
// keeps the size to which it has grown.
func (s *spaces) shrink() {
	if len(s.blocks) == 0 {
		s.forget()
		return
	}
	if s.peak <= 4*max(len(s.blocks), leastSpaces) {
		return
	}
	smaller := make(map[kvindex.EngineHash]space, len(s.blocks)) // maps.Clone keeps the size
	maps.Copy(smaller, s.blocks)
	s.giveBack(s.peak - max(len(smaller), leastSpaces))
	s.blocks = smaller
}

// forget drops everything.
func (s *spaces) forget() {
	s.giveBack(s.peak)
	s.blocks, s.left = nil, 0
}

func (s *spaces) giveBack(entries int) {
	s.peak -= entries
	if s.reserve != nil && entries > 0 {
		s.reserve(-entries * spaceBytes)
	}
}
