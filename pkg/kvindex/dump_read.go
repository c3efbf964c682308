package kvindex

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// ErrDump says that the input cannot be read as a dump: it is no dump, cut short,
// damaged, or of another version or hash scheme.
var ErrDump = errors.New("kvindex: dump")

// maxNote bounds the length of a rank's note.
const maxNote = 1 << 30

// Dump is a dump that was read. It keeps the dump's bytes and an index of its runs.
// Immutable.
type Dump struct {
	data   []byte
	runs   []dumpRun
	blocks uint32
	ranks  []DumpedRank // in the order of the dump
}

type dumpRun struct {
	first, parent uint32
	at            int // where its hashes are in data
}

// DumpedRank is a rank of a dump. Note belongs to the dump and must not be changed.
type DumpedRank struct {
	Rank       worker.Rank
	At         time.Time // the time that DumpWriter.Add was given, in milliseconds
	Note       []byte
	Blocks     int           // engine blocks on any tier
	TierBlocks [numTiers]int // engine blocks by tier
	at         int           // where its groups are in the dump
}

// ReadDump reads a dump to its end and checks all of it. It takes somewhat more memory
// than the dump is long. Every error is [ErrDump]; an error of r is wrapped as well.
func ReadDump(r io.Reader) (*Dump, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDump, err)
	}
	d := &Dump{data: data}
	p := dumpParser{b: data}
	if err := p.head(); err != nil {
		return nil, err
	}
	if err := d.parts(&p); err != nil {
		return nil, err
	}
	return d, nil
}

// Ranks returns the ranks of the dump. The caller owns the slice.
func (d *Dump) Ranks() []DumpedRank { return slices.Clone(d.ranks) }

// Runs returns the number of runs of blocks without a branch, over all ranks.
func (d *Dump) Runs() int { return len(d.runs) }

// Blocks returns the number of different blocks, over all ranks.
func (d *Dump) Blocks() int { return int(d.blocks) }

// Copy fills c with what the rank held. False means that the rank is not in the dump.
func (d *Dump) Copy(r worker.Rank, c *RankCopy) bool {
	c.begin(r)
	i := slices.IndexFunc(d.ranks, func(x DumpedRank) bool { return x.Rank == r })
	if i < 0 {
		return false
	}
	p := dumpParser{b: d.data, at: d.ranks[i].at}
	p.names(d.ranks[i].Blocks, d.blocks, func(h EngineHash, block uint32, tiers uint8) { c.add(h, block, tiers, d) })
	c.settle()
	return true
}

// run implements chains.
func (d *Dump) run(block uint32, dst []LocalHash) (first, parent uint32, _ []LocalHash) {
	i, found := slices.BinarySearchFunc(d.runs, block, func(r dumpRun, b uint32) int { return cmp.Compare(r.first, b) })
	if !found {
		i--
	}
	end := d.blocks + 1
	if i+1 < len(d.runs) {
		end = d.runs[i+1].first
	}
	x := d.runs[i]
	for k := range int(end - x.first) {
		dst = append(dst, LocalHash(binary.LittleEndian.Uint64(d.data[x.at+k*hashBytes:])))
	}
	return x.first, x.parent, dst
}

// parts reads all parts of a dump whose head and checksum were checked.
func (d *Dump) parts(p *dumpParser) error {
	seen := make(map[worker.Rank]bool)
	for {
		switch kind := p.byte(); {
		case p.err != nil:
			return p.err
		case kind == partRuns:
			for n := p.number(math.MaxUint32); n > 0 && p.err == nil; n-- {
				d.readRun(p)
			}
		case kind == partRank:
			x := d.readRank(p)
			if seen[x.Rank] {
				p.fail("rank %s a second time", x.Rank)
			}
			seen[x.Rank] = true
			d.ranks = append(d.ranks, x)
		case kind == partEnd:
			if n := p.number(math.MaxUint32); p.err == nil && (n != uint64(len(d.ranks)) || p.at != len(p.b)) {
				p.fail("an end after %d ranks with %d bytes behind it: expected %d ranks and nothing", len(d.ranks), len(p.b)-p.at, n)
			}
			return p.err
		default:
			p.fail("part %q: expected %q, %q or %q", kind, partRuns, partRank, partEnd)
		}
	}
}

func (d *Dump) readRun(p *dumpParser) {
	first := d.blocks + 1
	back := p.number(uint64(first))
	n := p.number(uint64(len(p.b)-p.at) / hashBytes)
	if p.err == nil && (back == 0 || n == 0 || n > uint64(math.MaxUint32-first)) {
		p.fail("a run of %d blocks, its parent %d before it: expected at least one and at most %d", n, back, math.MaxUint32)
	}
	if p.err != nil {
		return
	}
	d.runs = append(d.runs, dumpRun{first: first, parent: first - uint32(back), at: p.at})
	d.blocks += uint32(n)
	p.take(int(n) * hashBytes)
}

func (d *Dump) readRank(p *dumpParser) DumpedRank {
	var x DumpedRank
	x.Rank.ID = worker.ID(p.number(math.MaxUint64))
	x.Rank.DPRank = worker.DPRank(p.number(math.MaxUint32))
	x.At = time.UnixMilli(int64(p.number(math.MaxInt64)))
	x.Note = p.take(int(p.number(maxNote)))
	x.Blocks = int(p.number(uint64(len(p.b)-p.at) / hashBytes))
	x.at = p.at
	p.names(x.Blocks, d.blocks, func(_ EngineHash, _ uint32, tiers uint8) {
		for t := range numTiers {
			x.TierBlocks[t] += int(tiers >> t & 1)
		}
	})
	return x
}

// dumpParser reads a dump and remembers the first fault.
type dumpParser struct {
	b   []byte
	at  int
	err error
}

func (p *dumpParser) fail(format string, a ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%w: byte %d: "+format, append([]any{ErrDump, p.at}, a...)...)
	}
}

// head checks magic, version, scheme and checksum, and cuts the checksum off.
func (p *dumpParser) head() error {
	if !bytes.HasPrefix(p.b, []byte(dumpMagic)) {
		if bytes.HasPrefix([]byte(dumpMagic), p.b) {
			return fmt.Errorf("%w: cut short after %d bytes", ErrDump, len(p.b))
		}
		return fmt.Errorf("%w: it begins with %q: expected %q", ErrDump, p.b[:min(len(p.b), len(dumpMagic))], dumpMagic)
	}
	p.at = len(dumpMagic)
	if v := p.number(math.MaxUint64); p.err == nil && v != dumpVersion {
		return fmt.Errorf("%w: version %d: expected %d", ErrDump, v, dumpVersion)
	}
	scheme := p.take(hashBytes)
	if p.err != nil || len(p.b)-p.at < hashBytes {
		return fmt.Errorf("%w: cut short after %d bytes", ErrDump, len(p.b))
	}
	if s := binary.LittleEndian.Uint64(scheme); s != hashScheme() {
		return fmt.Errorf("%w: blocks are hashed in another way (%x): expected %x", ErrDump, s, hashScheme())
	}
	end := len(p.b) - hashBytes
	if got, want := xxh3.Hash(p.b[:end]), binary.LittleEndian.Uint64(p.b[end:]); got != want {
		return fmt.Errorf("%w: cut short or damaged: %d bytes have checksum %x: expected %x", ErrDump, end, got, want)
	}
	p.b = p.b[:end]
	return nil
}

func (p *dumpParser) byte() byte {
	if b := p.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

// number reads a number. A number above the limit is a fault. After a fault number
// returns 0.
func (p *dumpParser) number(most uint64) uint64 {
	if p.err != nil {
		return 0
	}
	v, n := binary.Uvarint(p.b[p.at:])
	if n <= 0 {
		p.fail("expected a number")
		return 0
	}
	if v > most {
		p.fail("number %d: expected at most %d", v, most)
		return 0
	}
	p.at += n
	return v
}

func (p *dumpParser) take(n int) []byte {
	if p.err != nil {
		return nil
	}
	if n > len(p.b)-p.at {
		p.fail("%d bytes are left: expected %d", len(p.b)-p.at, n)
		return nil
	}
	b := p.b[p.at : p.at+n]
	p.at += n
	return b
}

// names reads groups that have n names together, and calls f for each name. Block
// numbers above the last one of the dump are a fault.
func (p *dumpParser) names(n int, last uint32, f func(name EngineHash, block uint32, tiers uint8)) {
	at := uint64(0)
	for n > 0 && p.err == nil {
		at += p.number(uint64(last))
		count := p.number(uint64(n))
		tiers := p.byte()
		if p.err == nil && (at == 0 || count == 0 || at+count-1 > uint64(last) || tiers == 0 || tiers >= 1<<numTiers) {
			p.fail("%d names from block %d on, tiers %b: expected at least one of blocks 1 to %d on a known tier", count, at, tiers, last)
		}
		hashes := p.take(int(count) * hashBytes)
		for i := 0; i < len(hashes); i += hashBytes {
			f(EngineHash(binary.LittleEndian.Uint64(hashes[i:])), uint32(at)+uint32(i/hashBytes), tiers)
		}
		at += count - 1
		n -= int(count)
	}
}
