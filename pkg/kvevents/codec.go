package kvevents

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Kind is what an event says.
type Kind uint8

// The kinds.
const (
	Stored Kind = iota + 1
	Removed
	Cleared
)

// Event is one decoded event. Its slices belong to the Decoder and are valid
// until its next Decode.
type Event struct {
	Kind    Kind
	Stored  kvindex.Stored  // of Kind Stored
	Removed kvindex.Removed // of Kind Removed
}

// Batch is one decoded payload. It belongs to the Decoder and is valid until
// its next Decode.
type Batch struct {
	Timestamp float64 // seconds, as the publisher wrote it
	Events    []Event
	Refused   Refusals // of this payload
}

// Decoder decodes the payloads of one publisher, in order. It learns which KV
// cache groups are the main attention's, and reuses its buffers. Not safe for
// concurrent use.
type Decoder struct {
	blockSize int
	rank      worker.DPRank

	batch    Batch
	blocks   []kvindex.Block      // arena of Stored.Blocks
	removed  []kvindex.EngineHash // arena of Removed.Blocks
	hashes   []kvindex.EngineHash
	tokens   []uint32
	locals   []kvindex.LocalHash
	groups   map[uint64]bool // learnt: true for main attention
	sawWhole bool            // the publisher has sent a whole block
}

// NewDecoder returns a decoder for the data-parallel rank of a worker whose
// blocks have blockSize tokens.
func NewDecoder(blockSize uint32, rank worker.DPRank) *Decoder {
	d := &Decoder{blockSize: int(blockSize), rank: rank}
	d.Reset()
	return d
}

// Reset forgets what was learnt of the publisher: it has restarted.
func (d *Decoder) Reset() {
	d.groups = map[uint64]bool{}
	d.sawWhole = false
}

// Decode reads one payload: an array of timestamp, events and optionally the
// data-parallel rank. Events that cannot be used are counted in the batch's
// Refused; an error means that the payload as a whole is unreadable, and it is
// then counted as one Malformed. Payload is not kept.
func (d *Decoder) Decode(payload []byte) (*Batch, error) {
	d.batch = Batch{Events: d.batch.Events[:0]}
	d.blocks, d.removed = d.blocks[:0], d.removed[:0]
	r := reader{b: payload}
	fields := r.array()
	if fields < 2 {
		r.fail()
	}
	d.batch.Timestamp = r.float()
	events := reader{b: r.value()}
	rank, ranked := uint64(0), false
	if fields > 2 && !r.nil() {
		rank, _ = r.int()
		ranked = true
	}
	for i := 3; i < fields; i++ {
		r.skip()
	}
	n := 0
	if r.err == nil {
		n = events.array()
	}
	if r.err != nil || events.err != nil || r.left() != 0 {
		d.batch.Refused[Malformed]++
		return &d.batch, fmt.Errorf("%w: expected a batch of timestamp, events and rank in %d bytes", errMsgpack, len(payload))
	}
	if ranked && rank != uint64(d.rank) {
		d.batch.Refused[ForeignRank] += uint64(n)
		return &d.batch, nil
	}
	for range n {
		d.event(events.value())
	}
	return &d.batch, nil
}

// event decodes one event from its own bytes, so that a fault in it ends with
// it.
func (d *Decoder) event(b []byte) {
	f, reason, ok := readFields(b)
	if !ok {
		d.batch.Refused[reason]++
		return
	}
	tier, reason, ok := d.admit(&f)
	if !ok {
		d.batch.Refused[reason]++
		return
	}
	switch f.kind {
	case Stored:
		reason, ok = d.stored(&f, tier)
	case Removed:
		reason, ok = d.remove(&f, tier)
	case Cleared:
		d.batch.Events = append(d.batch.Events, Event{Kind: Cleared})
	}
	if !ok {
		d.batch.Refused[reason]++
	}
}

// admit judges everything but the blocks: where they are and whose they are.
func (d *Decoder) admit(f *fields) (kvindex.Tier, Reason, bool) {
	if f.kind == Cleared {
		return 0, 0, true
	}
	if s := string(f.locality); s != "" && s != "LOCAL" {
		return 0, RemoteLocality, false
	}
	if s := string(f.ownership); s != "" && s != "worker" && s != "WORKER" {
		return 0, ForeignOwner, false
	}
	if !d.mainGroup(f) {
		return 0, ForeignGroup, false
	}
	tier, ok := tierOf(f.medium)
	return tier, UnknownMedium, ok
}

// mainGroup reports whether the blocks are the main attention's, the only ones
// whose presence means that a prefix is held. A store that names the kind
// teaches it for its group; a removal names none and goes by what was learnt.
func (d *Decoder) mainGroup(f *fields) bool {
	if f.kind == Stored && len(f.specKind) > 0 {
		main := false
		switch string(f.specKind) {
		case "full_attention", "mla_attention", "sink_full_attention":
			main = true
		}
		// NB: bounded, since a group number is whatever the wire says.
		if _, known := d.groups[f.group]; known || len(d.groups) < 256 {
			d.groups[f.group] = main
		}
		return main
	}
	if main, known := d.groups[f.group]; known {
		return main
	}
	return f.group == 0
}

// tierOf maps the media that engines name, as Dynamo's router does.
func tierOf(medium []byte) (kvindex.Tier, bool) {
	switch string(medium) {
	case "", "GPU", "DEVICE":
		return kvindex.Device, true
	case "CPU", "CPU_PINNED", "CPU_TIER1":
		return kvindex.Host, true
	case "CPU_TIER2", "DISK", "NVME", "STORAGE":
		return kvindex.Disk, true
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED":
		return kvindex.External, true
	}
	return 0, false
}

func (d *Decoder) stored(f *fields, tier kvindex.Tier) (Reason, bool) {
	var ok bool
	if d.hashes, ok = appendHashes(d.hashes[:0], f.hashes); !ok {
		return Malformed, false
	}
	e := kvindex.Stored{Tier: tier}
	if f.parent != nil {
		r := reader{b: f.parent}
		if e.Parent, e.HasParent = r.hash(), true; r.err != nil {
			return Malformed, false
		}
	}
	switch {
	case f.blockSize == uint64(d.blockSize):
		d.sawWhole = true
	case f.blockSize < uint64(d.blockSize) && d.sawWhole && len(d.hashes) == 1:
		return PartialBlock, false
	default:
		return BlockSizeMismatch, false
	}
	if f.hasAdapter && len(f.adapter) == 0 {
		return UnnamedAdapter, false
	}
	var reason Reason
	if d.tokens, reason, ok = appendTokens(d.tokens[:0], f.tokens); !ok {
		return reason, false
	}
	if len(d.tokens) != len(d.hashes)*d.blockSize {
		return TokenCount, false
	}
	salt := kvindex.Salt{LoRA: string(f.adapter), CacheSalt: string(f.cacheSalt)}
	usable := len(d.hashes)
	if f.extraKeys != nil {
		if usable, ok = plainBlocks(f.extraKeys, usable, &salt); !ok {
			return Malformed, false
		}
		if usable < len(d.hashes) {
			d.batch.Refused[ExtraKeys]++
			if usable == 0 {
				return 0, true
			}
		}
	}
	d.locals = kvindex.AppendLocalHashes(d.locals[:0], d.tokens[:usable*d.blockSize], d.blockSize, salt.Seed())
	from := len(d.blocks)
	for i, l := range d.locals {
		d.blocks = append(d.blocks, kvindex.Block{Engine: d.hashes[i], Local: l})
	}
	e.Blocks = d.blocks[from:len(d.blocks):len(d.blocks)]
	d.batch.Events = append(d.batch.Events, Event{Kind: Stored, Stored: e})
	return 0, true
}

func (d *Decoder) remove(f *fields, tier kvindex.Tier) (Reason, bool) {
	from := len(d.removed)
	var ok bool
	if d.removed, ok = appendHashes(d.removed, f.hashes); !ok {
		d.removed = d.removed[:from]
		return Malformed, false
	}
	d.batch.Events = append(d.batch.Events, Event{Kind: Removed, Removed: kvindex.Removed{
		Blocks: d.removed[from:len(d.removed):len(d.removed)], Tier: tier,
	}})
	return 0, true
}
