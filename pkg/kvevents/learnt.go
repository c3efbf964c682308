package kvevents

import (
	"encoding/binary"
	"maps"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// learnt is what a [Decoder] knows of a publisher from earlier messages and cannot learn
// from later ones. Without it a removal of the main group's blocks could be judged as one
// of another group, and a salted block could be hashed without its salt.
type learnt struct {
	Groups map[uint64]bool `json:"groups,omitempty"`
	Whole  bool            `json:"whole,omitempty"`
	Seeds  [2]uint64       `json:"seeds,omitzero"`
	Spaces []spaceBlocks   `json:"spaces,omitempty"`
}

// spaceBlocks are blocks with equal facts; see [space].
type spaceBlocks struct {
	Seed   uint64    `json:"seed,omitempty"`
	Tiers  uint8     `json:"tiers"`
	Kind   spaceKind `json:"kind,omitempty"`
	Blocks []byte    `json:"blocks"` // engine hashes, 8 bytes each, little-endian
}

func (d *Decoder) learnt() learnt {
	l := learnt{Groups: maps.Clone(d.groups), Whole: d.sawWhole, Seeds: d.seeds}
	at := make(map[space]int)
	for h, sp := range d.spaces.blocks {
		i, known := at[sp]
		if !known {
			i, at[sp] = len(l.Spaces), len(l.Spaces)
			l.Spaces = append(l.Spaces, spaceBlocks{Seed: sp.seed, Tiers: sp.tiers, Kind: sp.kind})
		}
		l.Spaces[i].Blocks = binary.LittleEndian.AppendUint64(l.Spaces[i].Blocks, uint64(h))
	}
	return l
}

// resume gives the decoder what another decoder had learnt.
func (d *Decoder) resume(l learnt) {
	d.Reset()
	maps.Copy(d.groups, l.Groups)
	d.sawWhole, d.used, d.seeds = l.Whole, l.Whole, l.Seeds
	for _, main := range l.Groups {
		d.others = d.others || !main
	}
	for _, x := range l.Spaces {
		var blocks []kvindex.EngineHash
		for b := x.Blocks; len(b) >= 8; b = b[8:] {
			blocks = append(blocks, kvindex.EngineHash(binary.LittleEndian.Uint64(b)))
		}
		d.spaces.resume(blocks, space{seed: x.Seed, tiers: x.Tiers, kind: x.Kind})
	}
}
