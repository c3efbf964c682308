package kvevents

import (
	"maps"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// spaces holds what is to be known of blocks that are not plain: the seed of those
// with a cache salt, which engines name with the first block of a prompt only, and
// which blocks are left out of the index because they depend on what cannot be
// read. Those that follow a block have it by their parent.
//
// It takes memory for as long as the engine has the blocks, whatever clients name
// them, so it lives within the index's budget: reserve is asked for it.
type spaces struct {
	reserve func(bytes int) bool // nil: there is no budget
	blocks  map[kvindex.EngineHash]space
	peak    int // entries that memory is reserved for
	left    int // entries that are left out
}

// spaceBytes is more than an entry of the map takes while it is half empty.
const spaceBytes = 64

// leastSpaces is how many entries memory is reserved for at a time.
const leastSpaces = 64

type space struct {
	seed  uint64 // of its salt and adapter; 0 of a block that is left out
	tiers uint8  // where the block is
	kind  spaceKind
}

type spaceKind uint8

const (
	salted    spaceKind = iota
	ambiguous           // stored under several salts: what follows it is left out
	unread              // left out: it depends on what cannot be read
	unsure              // left out: it follows one that is ambiguous
)

// out returns why a block of the kind is left out, if it is.
func (k spaceKind) out() (Reason, bool) {
	switch k {
	case unread:
		return ExtraKeys, true
	case unsure:
		return AmbiguousSalt, true
	}
	return 0, false
}

// followers returns the kind of what follows a block of this one, if it is left
// out; it is not for want of a salt where it names its own.
func (k spaceKind) followers(ownSalt bool) (kind spaceKind, out bool) {
	switch _, out := k.out(); {
	case out:
		return k, true
	case k == ambiguous && !ownSalt:
		return unsure, true
	}
	return salted, false
}

// of returns what is known of a block.
func (s *spaces) of(h kvindex.EngineHash) (space, bool) {
	sp, known := s.blocks[h]
	return sp, known
}

// note remembers what blocks are that were stored on a tier. It is false, and
// remembers none, where there is no memory for that.
func (s *spaces) note(blocks []kvindex.EngineHash, sp space, t kvindex.Tier) bool {
	if !s.room(len(blocks)) {
		return false
	}
	for _, h := range blocks {
		held, known := s.blocks[h]
		if _, out := held.kind.out(); known && out {
			s.left--
		}
		now := space{seed: sp.seed, kind: sp.kind, tiers: held.tiers | 1<<t}
		if known && held.kind <= ambiguous && sp.kind == salted && (held.kind == ambiguous || held.seed != sp.seed) {
			now.kind, now.seed = ambiguous, held.seed
		}
		if _, out := now.kind.out(); out {
			s.left++
		}
		s.blocks[h] = now
	}
	return true
}

// resume remembers what was known of blocks before a restart, as far as there is
// memory: blocks whose salt is forgotten match no salted prompt any more.
func (s *spaces) resume(blocks []kvindex.EngineHash, sp space) {
	if sp.kind > unsure || !s.room(len(blocks)) {
		return
	}
	for _, h := range blocks {
		s.blocks[h] = sp
		if _, out := sp.kind.out(); out {
			s.left++
		}
	}
}

// noteBare notes blocks that have no salt: one that had is ambiguous from now on.
func (s *spaces) noteBare(blocks []kvindex.EngineHash, seed uint64, t kvindex.Tier) {
	if len(s.blocks) == 0 {
		return
	}
	for i, h := range blocks {
		if _, known := s.blocks[h]; known {
			s.note(blocks[i:i+1], space{seed: seed}, t) // it is there: no memory is asked for
		}
	}
}

// take notes that blocks are on a tier no more.
func (s *spaces) take(blocks []kvindex.EngineHash, t kvindex.Tier) {
	if len(s.blocks) == 0 {
		return
	}
	for _, h := range blocks {
		held, known := s.blocks[h]
		if !known {
			continue
		}
		if held.tiers &^= 1 << t; held.tiers != 0 {
			s.blocks[h] = held
			continue
		}
		if _, out := held.kind.out(); out {
			s.left--
		}
		delete(s.blocks, h)
	}
	s.shrink()
}

// room has memory for n more entries.
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

// shrink gives memory back once most of it is of no use: a map keeps what it has
// grown to.
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
