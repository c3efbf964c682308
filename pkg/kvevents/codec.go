package kvevents

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Kind is the type of an event.
type Kind uint8

// The kinds of events.
const (
	Stored Kind = iota + 1
	Removed
	Cleared
	ignored // marked by its publisher as one to be ignored
)

// Event is one decoded event. Its slices belong to the Decoder and are valid until its
// next Decode.
type Event struct {
	Kind    Kind
	Stored  kvindex.Stored  // of Kind Stored
	Removed kvindex.Removed // of Kind Removed
}

// extends reports whether the event stores one block on the device that continues a
// chain.
func (e *Event) extends() bool {
	return e.Kind == Stored && e.Stored.HasParent && len(e.Stored.Blocks) == 1 && e.Stored.Tier == kvindex.Device
}

// Batch is one decoded payload. It belongs to the Decoder and is valid until
// its next Decode.
type Batch struct {
	Events  []Event
	Refused Refusals // of this payload
	Whole   bool     // it has the publisher's first whole block
}

// Decoder decodes the payloads of one publisher, in order. It learns which KV cache
// groups belong to the main attention and which blocks are salted. Its buffers are
// reused. Not safe for concurrent use.
type Decoder struct {
	blockSize int
	eagle     bool
	rank      worker.DPRank
	anyRank   bool // the worker has one rank: its batches are of it, whatever the engine calls it
	told      Told // of what was refused last

	batch    Batch
	blocks   []kvindex.Block      // backs the slices Stored.Blocks
	removed  []kvindex.EngineHash // backs the slices Removed.Blocks
	hashes   []kvindex.EngineHash
	tokens   []uint32
	locals   []kvindex.LocalHash
	keys     blockKeys
	window   []uint32        // scratch: the tokens that one block is hashed over
	groups   map[uint64]bool // learnt: true for a group of the main attention
	others   bool            // learnt: the publisher stores blocks in other groups, too
	sawWhole bool            // the publisher has sent a whole block
	short    short           // of a publisher that has not
	used     bool            // a store of the publisher could be used
	spaces   spaces          // facts about blocks that are not plain
	seeds    [2]uint64       // the first two hash seeds of the publisher's blocks; 0: there was none
}

// short is the latest block that was shorter than a whole one.
type short struct {
	size  uint64
	block kvindex.EngineHash
}

// NewDecoder returns a decoder for one data-parallel rank of a worker. blockSize is the
// tokens in a block, or with eagle the pairs of tokens.
func NewDecoder(blockSize uint32, rank worker.DPRank, eagle bool) *Decoder {
	d := &Decoder{blockSize: int(blockSize), rank: rank, eagle: eagle}
	d.Reset()
	return d
}

// Reset forgets all that was learnt of the publisher, after its restart.
func (d *Decoder) Reset() {
	d.groups = map[uint64]bool{}
	d.sawWhole, d.others, d.short, d.used, d.told.Unusable = false, false, short{}, false, false
	d.seeds = [2]uint64{}
	d.Forget()
}

// Forget forgets what was learnt of blocks, when all of them were dropped.
func (d *Decoder) Forget() { d.spaces.forget() }

// Budget sets the function that the decoder calls before it keeps facts about blocks,
// with the bytes that they take. False means that there is no room: the blocks are then
// left out. A negative count gives bytes back. Without a function the memory is not
// bounded.
func (d *Decoder) Budget(reserve func(bytes int) bool) { d.spaces.reserve = reserve }

// LeftOut is how many blocks of the publisher were left out of the batches because they
// depend on something that cannot be read, or follow such a block.
func (d *Decoder) LeftOut() int { return d.spaces.left }

// Decode reads one payload: an array of timestamp, events and optionally the
// data-parallel rank. Events that cannot be used are counted in the batch's Refused. An
// error means that the whole payload is unreadable; it is then counted as one Malformed.
// The payload is not kept.
func (d *Decoder) Decode(payload []byte) (*Batch, error) {
	d.batch = Batch{Events: d.batch.Events[:0]}
	d.blocks, d.removed = d.blocks[:0], d.removed[:0]
	r := reader{b: payload}
	fields := r.array()
	if fields < 2 {
		r.fail()
	}
	if c := r.peek(); !isFloat(c) && !isInt(c) { // the time, which nobody asks for
		r.fail()
	}
	r.skip()
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
	if ranked && !d.anyRank && rank != uint64(d.rank) {
		d.batch.Refused[ForeignRank] += uint64(n)
		d.told.Rank = rank
		return &d.batch, nil
	}
	for range n {
		if size := d.event(events.b[events.i:]); size > 0 {
			events.i += size
		} else {
			events.skip()
		}
	}
	return &d.batch, nil
}

// keptBytes is the largest buffer that is kept for the next payload.
const keptBytes = 1 << 20

// trim drops large buffers, so that a rank keeps no memory for one large message. The batch
// decoded last is not valid any more.
func (d *Decoder) trim() {
	d.batch.Events = trimmed(d.batch.Events, 128)
	d.blocks, d.removed, d.hashes = trimmed(d.blocks, 16), trimmed(d.removed, 8), trimmed(d.hashes, 8)
	d.tokens, d.locals = trimmed(d.tokens, 4), trimmed(d.locals, 8)
	d.keys.keys, d.keys.ends = trimmed(d.keys.keys, 8), trimmed(d.keys.ends, 8)
}

// trimmed returns the buffer, whose elements have so many bytes, or nil if it is large.
func trimmed[T any](buffer []T, size int) []T {
	if cap(buffer)*size > keptBytes {
		return nil
	}
	return buffer
}

// event decodes the event at the front of b and returns its size. 0 means that the size
// is unknown and the caller must skip the event.
func (d *Decoder) event(b []byte) (size int) {
	f, reason, ok := readFields(b)
	if !ok {
		d.batch.Refused[reason]++
		return f.size
	}
	tier, reason, ok := d.admit(&f)
	switch {
	case !ok:
	case f.kind == Stored:
		reason, ok = d.stored(&f, tier)
	case f.kind == Removed:
		reason, ok = d.remove(&f, tier)
	default:
		d.Forget()
		d.batch.Events = append(d.batch.Events, Event{Kind: Cleared})
	}
	if !ok {
		d.batch.Refused[reason]++
	}
	if f.kind == Stored && (!ok || !d.used) {
		d.weigh(reason, ok)
	}
	return f.size
}

// weigh notes what became of a store: where none could be used so far, the publisher's
// events tell nothing. Reasons that are about single blocks say nothing of the others.
func (d *Decoder) weigh(why Reason, ok bool) {
	switch {
	case ok:
		d.used, d.told.Unusable = true, false
	case d.used, why == PartialBlock, why == ExtraKeys, why == AmbiguousSalt, why == NoRoom:
	default:
		d.told.Unusable, d.told.Why = true, why
	}
}

// admit judges all fields but the blocks: the owner, the place, the group and the tier.
func (d *Decoder) admit(f *fields) (kvindex.Tier, Reason, bool) {
	if s := string(f.ownership); s != "" && s != "worker" && s != "WORKER" {
		return 0, ForeignOwner, false
	}
	if f.kind == Cleared {
		return 0, 0, true
	}
	if s := string(f.locality); s != "" && s != "LOCAL" {
		return 0, RemoteLocality, false
	}
	if !d.mainGroup(f) {
		d.others = d.others || f.kind == Stored
		return 0, ForeignGroup, false
	}
	tier, ok := tierOf(f.medium)
	return tier, UnknownMedium, ok
}

// mainGroup reports whether the blocks belong to the main attention: only those show that
// a prefix is held. A store may name the kind of its group, which is then learnt. A
// removal names none and is judged by what was learnt.
func (d *Decoder) mainGroup(f *fields) bool {
	if f.kind == Stored && len(f.specKind) > 0 {
		if main, named := mainKind(f.specKind); named {
			// NB: bounded, since a publisher may send any group number.
			if _, known := d.groups[f.group]; known || len(d.groups) < 256 {
				d.groups[f.group] = main
			}
			return main
		}
	}
	if main, known := d.groups[f.group]; known {
		return main
	}
	return f.group == 0
}

// mainKind reports whether a kind of KV cache group, as vLLM names it, is of the main
// attention. A kind that is not known says as little as none: vLLM has "unknown", too.
func mainKind(kind []byte) (main, known bool) {
	switch string(kind) {
	case "full_attention", "mla_attention", "sink_full_attention":
		return true, true
	case "sliding_window", "sliding_window_mla", "chunked_local_attention", "mamba", "cross_attention", "encoder_only_attention":
		return false, true
	}
	return false, false
}

// tierOf maps the media that engines name, in the way of Dynamo's router.
func tierOf(medium []byte) (kvindex.Tier, bool) {
	switch string(medium) {
	case "", "GPU", "DEVICE":
		return kvindex.Device, true
	case "CPU", "CPU_PINNED", "CPU_TIER1", "cpu": // the last of vLLM's MooncakeStoreConnector
		return kvindex.Host, true
	case "CPU_TIER2", "DISK", "NVME", "STORAGE":
		return kvindex.Disk, true
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED":
		return kvindex.External, true
	}
	return 0, false
}

func (d *Decoder) stored(f *fields, tier kvindex.Tier) (Reason, bool) {
	// The counts are judged first, so that what they do not agree with is not decoded.
	hashes, tokens := reader{b: f.hashes}, reader{b: f.tokens}
	blocks, n := hashes.array(), tokens.array()
	if hashes.err != nil || tokens.err != nil {
		return Malformed, false
	}
	e := kvindex.Stored{Tier: tier}
	if f.parent != nil {
		r := reader{b: f.parent}
		e.Parent, e.HasParent = r.hash(), true
		if r.err != nil {
			return Malformed, false
		}
	}
	if reason, ok := d.sized(f, blocks, n, &e); !ok {
		return reason, false
	}
	var ok bool
	d.hashes, ok = hashes.appendHashes(d.hashes[:0], blocks)
	if !ok {
		return Malformed, false
	}
	if f.hasAdapter && len(f.adapter) == 0 {
		return UnnamedAdapter, false
	}
	salt := kvindex.Salt{LoRA: string(f.adapter), CacheSalt: string(f.cacheSalt)}
	d.keys.most = d.width()
	usable, ok := d.keys.read(f, blocks, &salt)
	if !ok {
		return Malformed, false
	}
	var after space
	if e.HasParent {
		after = d.spaces.blocks[e.Parent]
	}
	if kind, out := after.kind.followers(salt.CacheSalt != ""); out {
		return d.leaveOut(d.hashes, kind, tier)
	}
	if usable > 0 || len(d.hashes) == 0 {
		if reason, ok := d.readTokens(&tokens, n, &usable); !ok {
			return reason, false
		}
	}
	if usable < len(d.hashes) {
		if why, ok := d.leaveOut(d.hashes[usable:], unread, tier); why == NoRoom || usable == 0 {
			return why, ok
		}
		d.batch.Refused[ExtraKeys]++
	}
	if reason, ok := d.hash(usable, &e, salt, after.seed); !ok {
		return reason, false
	}
	from := len(d.blocks)
	for i, l := range d.locals {
		d.blocks = append(d.blocks, kvindex.Block{Engine: d.hashes[i], Local: l})
	}
	e.Blocks = d.blocks[from:len(d.blocks):len(d.blocks)]
	d.batch.Events = append(d.batch.Events, Event{Kind: Stored, Stored: e})
	return 0, true
}

// sized judges whether the blocks of a store are of the worker's size, and have as many
// tokens as that.
func (d *Decoder) sized(f *fields, blocks, tokens int, e *kvindex.Stored) (Reason, bool) {
	tier := e.Tier
	switch {
	case f.blockSize == uint64(d.blockSize) && (tier == kvindex.Device || tokens > 0):
		d.batch.Whole = d.batch.Whole || !d.sawWhole
		d.sawWhole = true
		return TokenCount, tokens == blocks*d.blockSize // pairs, too: there is one of each token
	case f.blockSize < uint64(d.blockSize) && blocks == 1 && (d.sawWhole || tier == kvindex.Device && d.mayBePartial(f, e)):
		return PartialBlock, false
	case tier != kvindex.Device:
		// A connector's own store, with blocks of its own size (LMCache), or a block that it
		// only names (vLLM's OffloadingConnector: no tokens).
		return ForeignOwner, false
	default:
		d.told.BlockSize = f.blockSize
		return BlockSizeMismatch, false
	}
}

// mayBePartial reports whether a short block may be the end of a prompt, though its
// publisher has sent no whole block yet. It is not if a block of its size is its parent:
// then the publisher's blocks are that short.
func (d *Decoder) mayBePartial(f *fields, e *kvindex.Stored) bool {
	follows := e.HasParent && d.short == short{f.blockSize, e.Parent}
	hashes := reader{b: f.hashes}
	hashes.array()
	d.short = short{f.blockSize, hashes.hash()}
	return f.blockSize > 0 && !follows
}

// leaveOut records blocks that are left out, and why, until the engine removes them.
// Blocks that follow them are left out for the same reason.
func (d *Decoder) leaveOut(blocks []kvindex.EngineHash, kind spaceKind, t kvindex.Tier) (Reason, bool) {
	if !d.spaces.note(blocks, space{kind: kind}, t) {
		return NoRoom, false
	}
	why, _ := kind.out()
	return why, false
}

// seed returns the seed that the blocks of a store are hashed with: that of the salt that
// the store names, else after, the seed of its parent if the parent is salted, else that
// of the adapter alone. False means that there is no memory to record it.
func (d *Decoder) seed(usable int, salt kvindex.Salt, after uint64, t kvindex.Tier) (seed uint64, ok bool) {
	seed = salt.Seed()
	if salt.CacheSalt == "" && after != 0 {
		seed = after
	}
	if seed != d.seeds[0] {
		d.seeds[min(d.seeds[0], 1)] = seed // no seed is 0
	}
	if salt.CacheSalt == "" && after == 0 {
		d.spaces.noteBare(d.hashes[:usable], seed, t)
		return seed, true
	}
	return seed, d.spaces.note(d.hashes[:usable], space{seed: seed}, t)
}

// doubled notes blocks that the index has refused since their hashes name other blocks, and
// returns why. If an engine makes its hashes of tokens alone, one names a block of each
// adapter and salt, and the index has the first of them.
func (d *Decoder) doubled(e *kvindex.Stored) Reason {
	if d.seeds[1] == 0 {
		return HashConflict
	}
	for _, b := range e.Blocks {
		if d.spaces.room(1) {
			d.spaces.double(b.Engine, e.Tier)
		}
	}
	return AmbiguousSalt
}

// width is how many tokens a block is hashed over. A block of n pairs has n+1 tokens, the
// last of which is the first of the next block.
func (d *Decoder) width() int {
	if d.eagle {
		return d.blockSize + 1
	}
	return d.blockSize
}

// readTokens reads the tokens of a store. SGLang has ids of its own in the place of a
// picture, and no prompt is hashed with those, so usable is cut to the blocks before the
// first that has one.
func (d *Decoder) readTokens(r *reader, n int, usable *int) (Reason, bool) {
	var wide int
	var pairs, ok bool
	d.tokens, wide, pairs, ok = appendTokens(d.tokens[:0], r, n)
	if !ok {
		return Malformed, false
	}
	if len(d.tokens) > 0 && pairs != d.eagle {
		return EagleMismatch, false
	}
	if wide < len(d.tokens) {
		if pairs {
			wide = max(wide-1, 0) // it ends a block as well
		}
		*usable = min(*usable, wide/d.blockSize)
	}
	return 0, true
}

// hash computes the local hashes of the first usable blocks of a store, whose tokens were
// read before. after is the seed of the parent, 0 if the parent has no salt.
func (d *Decoder) hash(usable int, e *kvindex.Stored, salt kvindex.Salt, after uint64) (Reason, bool) {
	seed, ok := d.seed(usable, salt, after, e.Tier)
	if !ok {
		return NoRoom, false
	}
	if !d.keys.any() {
		hash := kvindex.AppendLocalHashes
		if d.eagle {
			hash = kvindex.AppendPairHashes
		}
		to := min(usable*d.blockSize+d.width()-d.blockSize, len(d.tokens))
		d.locals = hash(d.locals[:0], d.tokens[:to], d.blockSize, seed)
		return 0, true
	}
	d.locals = d.locals[:0]
	for i := range usable {
		from := i * d.blockSize
		d.locals = kvindex.AppendKeyedHash(d.locals, d.tokens[from:from+d.width()], d.keys.of(i), seed, &d.window)
	}
	return 0, true
}

func (d *Decoder) remove(f *fields, tier kvindex.Tier) (Reason, bool) {
	from := len(d.removed)
	var ok bool
	d.removed, ok = appendHashes(d.removed, f.hashes)
	if !ok {
		d.removed = d.removed[:from]
		return Malformed, false
	}
	d.spaces.take(d.removed[from:], tier)
	d.batch.Events = append(d.batch.Events, Event{Kind: Removed, Removed: kvindex.Removed{
		Blocks: d.removed[from:len(d.removed):len(d.removed)], Tier: tier,
	}})
	return 0, true
}
