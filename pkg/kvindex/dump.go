package kvindex

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
)

// The form of a dump. Numbers are unsigned varints unless a size is given;
// hashes are 8 bytes, little-endian.
//
//	magic 8 bytes | version | scheme 8 bytes | parts | 'E' | number of ranks | checksum 8 bytes
//
// A part has one of two forms:
//
//	'N' | runs | each: first block − parent | length | local hashes
//	'R' | worker id | dp rank | time in Unix ms | note's length | note | names | groups, as many as there are names
//	    group: first block − last block of the group before | length | tiers 1 byte | engine hashes
//
// Blocks are numbered from 1 in the order in which the runs give them; 0 is the root. A
// part refers only to blocks of earlier parts and to its own earlier blocks. The
// checksum is XXH3-64 of all bytes before it.
const (
	dumpMagic   = "BATONKVI"
	dumpVersion = 1
	partRuns    = 'N'
	partRank    = 'R'
	partEnd     = 'E'
	hashBytes   = 8
)

// hashScheme returns a local hash that changes if local hashes are made in another way.
// The hashes of a dump with another scheme would match nothing, or wrong blocks.
func hashScheme() uint64 {
	tokens := make([]uint32, 16)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	seed := Salt{LoRA: "lora", CacheSalt: "salt"}.Seed()
	return uint64(AppendLocalHashes(nil, tokens, len(tokens), seed)[0])
}

// DumpWriter writes a dump, rank after rank. It keeps the hash of every block that it
// has written, 8 bytes each and some 40 for each run, so that a prefix is written once
// however many ranks hold it. After an error the dump is of no use. Not safe for
// concurrent use.
type DumpWriter struct {
	out   *bufio.Writer
	sum   *xxh3.Hasher
	ranks int

	// The blocks written so far: block n has locals[n-1].
	locals []LocalHash
	begins marks // blocks that begin a run
	kids   map[dumpKid]uint32

	// Scratch of Add.
	global  []uint32 // numbers in the dump, by the copy's own numbers
	parents []uint32 // of the runs that are new
	held    []heldName
	b       []byte
}

// dumpKid is a block that begins a run.
type dumpKid struct {
	parent uint32
	local  LocalHash
}

// NewDumpWriter returns a writer that has begun a dump on w.
func NewDumpWriter(w io.Writer) *DumpWriter {
	d := &DumpWriter{sum: xxh3.New(), kids: make(map[dumpKid]uint32)}
	d.out = bufio.NewWriterSize(io.MultiWriter(w, d.sum), 64<<10)
	d.b = append(d.b, dumpMagic...)
	d.b = binary.AppendUvarint(d.b, dumpVersion)
	d.b = binary.LittleEndian.AppendUint64(d.b, hashScheme())
	return d
}

// Add writes what a rank held, and when. The reader gets the note back as it is. Add
// must be called once for each rank.
func (d *DumpWriter) Add(c *RankCopy, at time.Time, note []byte) error {
	if err := d.addRuns(c); err != nil {
		return err
	}
	d.held = d.held[:0]
	for _, h := range c.held {
		h.block = d.global[h.block]
		d.held = append(d.held, h)
	}
	slices.SortFunc(d.held, heldName.compare)
	d.b = append(d.b, partRank)
	d.b = binary.AppendUvarint(d.b, uint64(c.rank.ID))
	d.b = binary.AppendUvarint(d.b, uint64(c.rank.DPRank))
	d.b = binary.AppendUvarint(d.b, uint64(max(at.UnixMilli(), 0)))
	d.b = binary.AppendUvarint(d.b, uint64(len(note)))
	d.b = append(d.b, note...)
	d.b = binary.AppendUvarint(d.b, uint64(len(d.held)))
	last := uint32(0)
	for rest := d.held; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].block == rest[n-1].block+1 && rest[n].tiers == rest[0].tiers {
			n++
		}
		d.b = binary.AppendUvarint(d.b, uint64(rest[0].block-last))
		d.b = binary.AppendUvarint(d.b, uint64(n))
		d.b = append(d.b, rest[0].tiers)
		for _, h := range rest[:n] {
			d.b = binary.LittleEndian.AppendUint64(d.b, uint64(h.name))
		}
		last = rest[n-1].block
		rest = rest[n:]
	}
	d.ranks++
	return d.flush()
}

// addRuns writes those blocks of a copy that are not in the dump yet. It fills d.global
// with the numbers of all blocks of the copy.
func (d *DumpWriter) addRuns(c *RankCopy) error {
	was := uint32(len(d.locals))
	if uint64(was)+uint64(len(c.locals)) > math.MaxUint32 {
		return fmt.Errorf("kvindex: dump: more than %d blocks", math.MaxUint32)
	}
	d.global = append(d.global[:0], 0)
	d.parents = d.parents[:0]
	for i, r := range c.runs {
		end := uint32(len(c.locals)) + 1
		if i+1 < len(c.runs) {
			end = c.runs[i+1].first
		}
		at := d.global[r.parent]
		for b := r.first; b < end; b++ {
			at = d.step(at, c.locals[b-1], was)
			d.global = append(d.global, at)
		}
	}
	if len(d.parents) == 0 {
		return nil
	}
	d.b = append(d.b, partRuns)
	d.b = binary.AppendUvarint(d.b, uint64(len(d.parents)))
	first := was + 1
	for _, parent := range d.parents {
		end := first + 1
		for int(end) <= len(d.locals) && !d.begins.has(end) {
			end++
		}
		d.b = binary.AppendUvarint(d.b, uint64(first-parent))
		d.b = binary.AppendUvarint(d.b, uint64(end-first))
		for ; first < end; first++ {
			d.b = binary.LittleEndian.AppendUint64(d.b, uint64(d.locals[first-1]))
		}
	}
	return d.flush()
}

// step returns the number of the block that follows another and has the hash h. If
// there is none, it adds the block. Runs that are in the output already cannot grow:
// those of the blocks with numbers up to the one given last.
func (d *DumpWriter) step(at uint32, h LocalHash, written uint32) uint32 {
	n := uint32(len(d.locals))
	inRun := at != 0 && at < n && !d.begins.has(at+1)
	if inRun && d.locals[at] == h {
		return at + 1
	}
	kid, found := d.kids[dumpKid{at, h}]
	if found {
		return kid
	}
	d.locals = append(d.locals, h)
	if at != n || at <= written { // otherwise the new block continues the last run
		d.begins.add(n + 1)
		d.kids[dumpKid{at, h}] = n + 1
		d.parents = append(d.parents, at)
	}
	return n + 1
}

// flush passes the bytes in d.b on to d.out.
func (d *DumpWriter) flush() error {
	_, err := d.out.Write(d.b)
	d.b = d.b[:0]
	if err != nil {
		return fmt.Errorf("kvindex: dump: %w", err)
	}
	return nil
}

// Close ends the dump. A dump that was not closed is refused as cut short.
func (d *DumpWriter) Close() error {
	d.b = append(d.b, partEnd)
	d.b = binary.AppendUvarint(d.b, uint64(d.ranks))
	err := errors.Join(d.flush(), d.out.Flush()) // before Sum64, since the sum covers these bytes
	d.b = binary.LittleEndian.AppendUint64(d.b, d.sum.Sum64())
	return errors.Join(err, d.flush(), d.out.Flush())
}
