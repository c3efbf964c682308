package kvevents

import (
	"encoding/binary"
	"maps"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// learnt is what a [Decoder] knows of a publisher that its next messages do not
// say again. Without it a removal of the main group's could be taken for a
// foreign one's, and a salted block for one without.
type learnt struct {
	Groups map[uint64]bool `json:"groups,omitempty"`
	Whole  bool            `json:"whole,omitempty"`
	Salts  []saltedBlocks  `json:"salts,omitempty"`
}

// saltedBlocks are blocks that have one salt, and all else of it, in common.
type saltedBlocks struct {
	Salt      string `json:"salt,omitempty"`
	Tiers     uint8  `json:"tiers"`
	Ambiguous bool   `json:"ambiguous,omitempty"`
	Blocks    []byte `json:"blocks"` // engine hashes, 8 bytes each, little-endian
}

func (d *Decoder) learnt() learnt {
	l := learnt{Groups: maps.Clone(d.groups), Whole: d.sawWhole}
	at := make(map[space]int)
	for h, sp := range d.spaces {
		i, known := at[sp]
		if !known {
			i, at[sp] = len(l.Salts), len(l.Salts)
			l.Salts = append(l.Salts, saltedBlocks{Salt: sp.salt, Tiers: sp.tiers, Ambiguous: sp.ambiguous})
		}
		l.Salts[i].Blocks = binary.LittleEndian.AppendUint64(l.Salts[i].Blocks, uint64(h))
	}
	return l
}

// resume makes the decoder know what another one had learnt.
func (d *Decoder) resume(l learnt) {
	d.Reset()
	maps.Copy(d.groups, l.Groups)
	d.sawWhole = l.Whole
	for _, s := range l.Salts {
		for b := s.Blocks; len(b) >= 8; b = b[8:] {
			if d.spaces == nil {
				d.spaces = make(spaces)
			}
			d.spaces[kvindex.EngineHash(binary.LittleEndian.Uint64(b))] = space{salt: s.Salt, tiers: s.Tiers, ambiguous: s.Ambiguous}
		}
	}
}
