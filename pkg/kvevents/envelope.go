package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// planeTopic is the topic of KV events on Dynamo's event plane.
const planeTopic = "kv-events"

var errEnvelope = errors.New("kvevents: event plane")

// Envelope is one message of Dynamo's event plane. Its slices are views into the bytes
// that were parsed.
type Envelope struct {
	Publisher uint64 // a random number, drawn anew in each life of a publisher
	Sequence  uint64 // counts the publisher's messages, from 0
	Topic     []byte
	Payload   []byte
}

// ParseEnvelope reads an envelope: a map with publisher_id, sequence, topic and payload.
// On ZeroMQ a header of five bytes comes before the map (version 1 and the map's length,
// big-endian); it may be missing.
func ParseEnvelope(b []byte) (Envelope, error) {
	var e Envelope
	if len(b) > 5 && b[0] == 1 {
		if n := binary.BigEndian.Uint32(b[1:]); uint64(n) != uint64(len(b)-5) {
			return e, fmt.Errorf("%w: header names %d bytes and %d follow", errEnvelope, n, len(b)-5)
		}
		b = b[5:]
	}
	r := reader{b: b}
	var has [4]bool
	for n := r.pairs(); n > 0 && r.err == nil; n-- {
		switch string(r.textOrSkip()) {
		case "publisher_id":
			e.Publisher, has[0] = r.unsigned(), true
		case "sequence":
			e.Sequence, has[1] = r.unsigned(), true
		case "topic":
			e.Topic, has[2] = r.text(), true
		case "payload":
			e.Payload, has[3] = r.bin(), true
		default:
			r.skip()
		}
	}
	if r.err != nil || r.left() != 0 || has != [4]bool{true, true, true, true} {
		return Envelope{}, fmt.Errorf("%w: expected a map with publisher_id, sequence, topic and payload in %d bytes", errEnvelope, len(b))
	}
	return e, nil
}

// parsePlane reads the frames [topic, publisher, sequence, envelope] of the event plane
// on ZeroMQ and returns the envelope's frame. The publisher and the sequence must be the
// same in the frames as in the envelope.
func parsePlane(frames [][]byte) ([]byte, error) {
	if len(frames) != 4 || len(frames[1]) != 8 || len(frames[2]) != 8 {
		return nil, fmt.Errorf("%w: message of %d frames: expected topic, publisher, sequence and envelope", errEnvelope, len(frames))
	}
	e, err := ParseEnvelope(frames[3])
	if err != nil {
		return nil, err
	}
	if e.Publisher != binary.BigEndian.Uint64(frames[1]) || e.Sequence != binary.BigEndian.Uint64(frames[2]) {
		return nil, fmt.Errorf("%w: envelope %d of publisher %x in frames of another", errEnvelope, e.Sequence, e.Publisher)
	}
	return frames[3], nil
}

// RouterEvent is one event of Dynamo's event plane. Its slices belong to the PlaneDecoder
// and are valid until its next Decode.
type RouterEvent struct {
	Event
	Rank worker.Rank
	ID   uint64 // counts the events of the rank
	// Refused: the event's rank and id were read, but it cannot be used, for Why.
	Refused bool
	Why     Reason
}

// PlaneDecoder decodes the payloads of Dynamo's event plane. Its buffers are reused. Not
// safe for concurrent use.
type PlaneDecoder struct {
	events  []RouterEvent
	blocks  []kvindex.Block
	removed []kvindex.EngineHash
}

// Decode reads one payload: an array of router events, as msgpack maps. Local hashes are
// used as they come, since they are made as ours are. Events whose rank or id cannot be
// read are counted as malformed. An error means that the whole payload is unreadable.
func (d *PlaneDecoder) Decode(payload []byte) (events []RouterEvent, malformed uint64, err error) {
	d.events, d.blocks, d.removed = d.events[:0], d.blocks[:0], d.removed[:0]
	r := reader{b: payload}
	n := r.array()
	whole := reader{b: payload} // a payload that is cut short is refused as a whole
	whole.skip()
	if r.err != nil || whole.err != nil || whole.left() != 0 {
		return nil, 1, fmt.Errorf("%w: expected an array of events in %d bytes", errMsgpack, len(payload))
	}
	for range n {
		e, ok := d.event(r.value())
		if !ok {
			malformed++
			continue
		}
		d.events = append(d.events, e)
	}
	return d.events, malformed, nil
}

// planeFields are the fields of a router event, as views.
type planeFields struct {
	worker, rank, id uint64
	named            [2]bool // whether worker and id were named
	tier, domain     []byte
	hasDomain        bool
	data             []byte
}

func (d *PlaneDecoder) event(b []byte) (RouterEvent, bool) {
	var f planeFields
	r := reader{b: b}
	for n := r.pairs(); n > 0 && r.err == nil; n-- {
		switch string(r.textOrSkip()) {
		case "worker_id":
			f.worker, f.named[0] = r.unsigned(), true
		case "storage_tier":
			f.tier = r.textOrSkip()
		case "residency_domain":
			f.domain, f.hasDomain = r.textOrSkip(), true
		case "event":
			inner := reader{b: r.value()}
			f.readEvent(&inner)
			if inner.err != nil {
				r.fail()
			}
		default:
			r.skip()
		}
	}
	if r.err != nil || f.named != [2]bool{true, true} || f.rank > worker.MaxDPSize {
		return RouterEvent{}, false
	}
	e := RouterEvent{Rank: worker.Rank{ID: worker.ID(f.worker), DPRank: worker.DPRank(f.rank)}, ID: f.id}
	e.Why, e.Refused = f.domainReason()
	if e.Refused {
		return e, true
	}
	tier, known := planeTier(f.tier)
	if !known {
		e.Why, e.Refused = UnknownMedium, true
		return e, true
	}
	e.Why, e.Refused = d.data(&e.Event, f.data, tier)
	return e, true
}

func (f *planeFields) readEvent(r *reader) {
	for n := r.pairs(); n > 0 && r.err == nil; n-- {
		switch string(r.textOrSkip()) {
		case "event_id":
			f.id, f.named[1] = r.unsigned(), true
		case "dp_rank":
			f.rank = r.unsigned()
		case "data":
			f.data = r.value()
		default:
			r.skip()
		}
	}
}

// domainReason judges who owns the blocks. An event without a domain comes from a
// publisher that knows no domains, so its worker owns them. False means that the event
// may be used.
func (f *planeFields) domainReason() (Reason, bool) {
	switch {
	case !f.hasDomain, string(f.domain) == "worker":
		return 0, false
	case string(f.domain) == "cache_owner":
		return ForeignOwner, true
	}
	return UnknownDomain, true
}

func planeTier(name []byte) (kvindex.Tier, bool) {
	switch string(name) {
	case "", "device":
		return kvindex.Device, true
	case "host_pinned":
		return kvindex.Host, true
	case "disk":
		return kvindex.Disk, true
	case "external":
		return kvindex.External, true
	}
	return 0, false
}

// data reads the content of an event: "cleared", {"stored": …} or {"removed": …}. True
// means that the event is refused, for the reason.
func (d *PlaneDecoder) data(e *Event, b []byte, tier kvindex.Tier) (Reason, bool) {
	r := reader{b: b}
	var kind []byte
	switch {
	case len(b) > 0 && isString(b[0]):
		kind = r.text()
	case len(b) > 0 && isMap(b[0]):
		if r.pairs() != 1 {
			return Malformed, true
		}
		kind = r.textOrSkip()
	default:
		return Malformed, true
	}
	switch string(kind) {
	case "cleared":
		e.Kind = Cleared
		return 0, false
	case "stored":
		e.Kind, e.Stored.Tier = Stored, tier
		return Malformed, !d.stored(&r, &e.Stored)
	case "removed":
		e.Kind, e.Removed.Tier = Removed, tier
		return Malformed, !d.remove(&r, &e.Removed)
	}
	return UnknownEvent, true
}

func (d *PlaneDecoder) stored(r *reader, e *kvindex.Stored) bool {
	from := len(d.blocks)
	found := false
	for n := r.pairs(); n > 0 && r.err == nil; n-- {
		switch string(r.textOrSkip()) {
		case "parent_hash":
			if !r.nil() {
				e.Parent, e.HasParent = r.hash(), true
			}
		case "blocks":
			found = true
			for blocks := r.array(); blocks > 0 && r.err == nil; blocks-- {
				d.blocks = append(d.blocks, r.planeBlock())
			}
		default:
			r.skip()
		}
	}
	if r.err != nil || !found {
		d.blocks = d.blocks[:from]
		return false
	}
	e.Blocks = d.blocks[from:len(d.blocks):len(d.blocks)]
	return true
}

func (r *reader) planeBlock() kvindex.Block {
	var b kvindex.Block
	var has [2]bool
	for n := r.pairs(); n > 0 && r.err == nil; n-- {
		switch string(r.textOrSkip()) {
		case "block_hash":
			b.Engine, has[0] = r.hash(), true
		case "tokens_hash":
			v, _ := r.int()
			b.Local, has[1] = kvindex.LocalHash(v), true
		default:
			r.skip()
		}
	}
	if has != [2]bool{true, true} {
		r.fail()
	}
	return b
}

func (d *PlaneDecoder) remove(r *reader, e *kvindex.Removed) bool {
	from := len(d.removed)
	found := false
	for n := r.pairs(); n > 0 && r.err == nil; n-- {
		if string(r.textOrSkip()) != "block_hashes" {
			r.skip()
			continue
		}
		found = true
		d.removed, _ = r.appendHashes(d.removed, r.array())
	}
	if r.err != nil || !found {
		d.removed = d.removed[:from]
		return false
	}
	e.Blocks = d.removed[from:len(d.removed):len(d.removed)]
	return true
}
