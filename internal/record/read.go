package record

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Log is what was read.
type Log struct {
	Version  string // of the plugin, of the latest file
	Requests []Request
	Fleets   []Fleet
	Speeds   []Speed // as last told of each rank and of each model's hand-offs
	Notes    []string

	byNumber map[numbered]int     // in Requests
	speeds   map[Speed]int        // in Speeds, without the numbers in the key
	latest   map[uint64]time.Time // decision, by the life of its process
	keys     map[uint64]bool      // ids of the keys by which decisions name blocks
	files    []file
	left     []leftOut
}

// Fleet is ranks that were known together, and how many decisions were made over them.
type Fleet struct {
	Ranks     []Rank
	Decisions int
}

// Request is one decision, as it was read. Its Chain and Loads are empty: see [Log.Chain].
type Request struct {
	Decision
	End  End  // Outcome "": it was not read
	Seen Load // what was booked on the rank that was to compute the prompt, if that was written

	file  int
	block uint32
	fleet int
}

type numbered struct{ life, number uint64 }

// file is what is known while one is read; its blocks stay.
type file struct {
	header
	latest uint64
	names  []string
	ranks  []Rank
	loads  []Load
	blocks []block
}

// block is one block of a prompt, with the number of the one before it; 0: it begins prompts.
type block struct {
	hash          uint64
	parent, depth uint32
}

type leftOut struct {
	why  string
	n    int
	more int64
}

// Is reports whether a file that begins so is a record, of any version.
func Is(head []byte) bool { return bytes.HasPrefix(head, []byte(magic[:len(magic)-1])) }

// simultaneous is by how much a decision may be written too late without a note.
const simultaneous = time.Second

// NewLog returns a Log to read into.
func NewLog() *Log {
	return &Log{byNumber: map[numbered]int{}, speeds: map[Speed]int{}, latest: map[uint64]time.Time{}, keys: map[uint64]bool{}}
}

func (l *Log) leave(why string, more int64) {
	i := slices.IndexFunc(l.left, func(o leftOut) bool { return o.why == why })
	if i < 0 {
		i = len(l.left)
		l.left = append(l.left, leftOut{why: why})
	}
	l.left[i].n++
	l.left[i].more += more
}

// Read adds a file. Those of one process have to be read in the order in which they were written. An error is r's own;
// what is wrong with the content is in the notes, once Done was called.
func (l *Log) Read(r io.Reader) error {
	b := bufio.NewReaderSize(r, 64<<10)
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(b, head); err != nil {
		l.leave("a file that is cut before its first frame", 0)
		return ownError(err)
	}
	if string(head) != magic {
		why := "a file that is no record"
		if Is(head) {
			why = fmt.Sprintf("a file of version %d of the format: this program reads version %d", head[len(head)-1], magic[len(magic)-1])
		}
		l.leave(why, 0)
		return nil
	}
	l.files = append(l.files, file{})
	f, at := &l.files[len(l.files)-1], len(l.files)-1
	var payload []byte
	for {
		kind, p, err := nextFrame(b, payload)
		switch {
		case errors.Is(err, io.EOF):
			f.names, f.loads = nil, nil
			return nil
		case errors.Is(err, errBroken), errors.Is(err, io.ErrUnexpectedEOF):
			f.names, f.loads = nil, nil
			rest, err := io.Copy(io.Discard, b)
			l.leave("the end of a file, from a frame that is cut or damaged", rest)
			return err
		case err != nil:
			return err
		}
		payload = p
		if f.Life == 0 && kind != frameHeader {
			l.leave("a frame before its file's header", 0)
			continue
		}
		l.frame(f, at, kind, &cursor{b: p})
	}
}

func ownError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

var errBroken = errors.New("broken frame")

// nextFrame returns the next frame, whose payload may be in mem. io.EOF: there is none.
func nextFrame(r *bufio.Reader, mem []byte) (kind byte, payload []byte, err error) {
	kind, err = r.ReadByte()
	if err != nil {
		return 0, nil, err
	}
	sum := []byte{kind}
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, nil, cutShort(err)
	}
	if n > mostFrame {
		return 0, nil, errBroken
	}
	sum = binary.AppendUvarint(sum, n)
	payload = slices.Grow(mem[:0], int(n))[:n]
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, cutShort(err)
	}
	var crc [4]byte
	if _, err := io.ReadFull(r, crc[:]); err != nil {
		return 0, nil, cutShort(err)
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	if crc32.Update(crc32.Checksum(sum, table), table, payload) != binary.LittleEndian.Uint32(crc[:]) {
		return 0, nil, errBroken
	}
	return kind, payload, nil
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (l *Log) frame(f *file, at int, kind byte, c *cursor) {
	switch kind {
	case frameHeader:
		f.Version = c.text()
		f.Began = time.Unix(0, c.int())
		f.Life, f.Key = c.fixed()|1, c.fixed()
		l.Version = f.Version
	case frameName:
		if len(c.b) > mostName || len(f.names) >= mostNames {
			c.bad = true
			break
		}
		f.names = append(f.names, string(c.b))
	case frameFleet:
		l.fleet(f, c)
	case frameDecision:
		l.decision(f, at, c)
	case frameEnd:
		l.end(f, c)
	case frameSpeeds:
		l.learned(f, c)
	default:
		l.leave("a frame of a type that this program does not know", 0)
	}
	if c.bad {
		l.leave("a frame that cannot be read", 0)
	}
}

func (f *file) name(c *cursor) string {
	n := c.uint()
	if n == 0 || n > uint64(len(f.names)) {
		c.bad = c.bad || n > 0
		return ""
	}
	return f.names[n-1]
}

func readRank(c *cursor) worker.Rank {
	id := worker.ID(c.uint())
	return worker.Rank{ID: id, DPRank: worker.DPRank(c.count(1 << 20))} //nolint:gosec // bounded
}

func (l *Log) fleet(f *file, c *cursor) {
	n := c.count(mostRanks)
	ranks := make([]Rank, 0, min(n, len(c.b)/9+1))
	for range n {
		r := Rank{Rank: readRank(c)}
		if b := c.bytes(2); b != nil {
			r.Role, r.Told = worker.Role(b[0]), b[1]&1 > 0
		}
		r.Engine, r.Model, r.Domain = f.name(c), f.name(c), f.name(c)
		r.BlockSize, r.Capacity, r.Endpoint = c.count(1<<20), c.count(1<<40), c.text()
		if c.bad {
			return
		}
		ranks = append(ranks, r)
	}
	f.ranks, f.loads = ranks, make([]Load, len(ranks))
	if k := len(l.Fleets); k == 0 || !slices.Equal(l.Fleets[k-1].Ranks, ranks) {
		l.Fleets = append(l.Fleets, Fleet{Ranks: ranks})
	}
}

func (l *Log) decision(f *file, at int, c *cursor) {
	d := Request{file: at, fleet: len(l.Fleets) - 1}
	since := time.Duration(c.int())
	d.At = f.Began.Add(since)
	number := f.latest + uint64(c.int()) //nolint:gosec // a difference
	d.Bound = c.uint()&1 > 0
	d.Model, d.Source, d.Refused = f.name(c), f.name(c), f.name(c)
	d.Attempt, d.Tokens, d.BlockTokens = c.count(1<<20), c.count(1<<31), c.count(1<<20)
	d.MaxTokens, d.Target = c.int(), time.Duration(c.int())
	d.block = f.chain(c)
	f.changed(c)
	d.Prefill, d.Decode = f.pick(c), f.pick(c)
	if c.bad {
		return
	}
	f.latest = number
	computes := d.Prefill.Rank
	if computes.ID == 0 {
		computes = d.Decode.Rank
	}
	if i := slices.IndexFunc(f.ranks, func(r Rank) bool { return r.Rank == computes }); i >= 0 {
		d.Seen = f.loads[i]
	} else if computes.ID != 0 {
		l.leave("a worker that its file does not list", 0)
	}
	if last := l.latest[f.Life]; d.At.Before(last) {
		if last.Sub(d.At) > simultaneous {
			l.leave("time that ran backwards: such decisions count as simultaneous", 0)
		}
		d.At = last
	}
	l.latest[f.Life], l.keys[f.Key] = d.At, true
	if d.fleet >= 0 {
		l.Fleets[d.fleet].Decisions++
	}
	l.byNumber[numbered{f.Life, number}] = len(l.Requests)
	l.Requests = append(l.Requests, d)
}

// chain reads a prompt's blocks, and returns the number of its last one.
func (f *file) chain(c *cursor) uint32 {
	at := c.count(len(f.blocks))
	n := c.count(min(mostChain, len(c.b)/8+1))
	for range n {
		b := block{hash: c.fixed(), parent: uint32(at), depth: 1} //nolint:gosec // a count
		if c.bad {
			return 0
		}
		if at > 0 {
			b.depth = f.blocks[at-1].depth + 1
		}
		f.blocks = append(f.blocks, b)
		at = len(f.blocks)
	}
	return uint32(at) //nolint:gosec // a count
}

func (f *file) changed(c *cursor) {
	for range c.count(127) {
		k := c.count(len(f.ranks))
		was := Load{}
		was.PrefillTokens, was.DecodeBlocks, was.Requests = c.int(), c.int(), c.int()
		if c.bad || k == 0 {
			c.bad = true
			return
		}
		l := &f.loads[k-1]
		l.Rank = f.ranks[k-1].Rank
		l.PrefillTokens, l.DecodeBlocks, l.Requests = l.PrefillTokens+was.PrefillTokens, l.DecodeBlocks+was.DecodeBlocks, l.Requests+was.Requests
	}
}

func (f *file) pick(c *cursor) (p Pick) {
	switch k := c.count(len(f.ranks) + 1); k {
	case 0:
		return p
	case 1:
		p.Rank = readRank(c)
	default:
		p.Rank = f.ranks[k-2].Rank
	}
	p.Mode, p.Reason, p.Overlap = f.name(c), f.name(c), c.count(mostChain<<16)
	return p
}

func (l *Log) end(f *file, c *cursor) {
	e := End{Number: f.latest - uint64(c.int()), Outcome: f.name(c)} //nolint:gosec // a difference
	e.First, e.Whole = time.Duration(max(c.int(), 0)), time.Duration(max(c.int(), 0))
	e.Output, e.Cached = c.int(), c.int()
	if c.bad {
		return
	}
	i, known := l.byNumber[numbered{f.Life, e.Number}]
	if !known {
		l.leave("an end without its decision, which is in an older file or was lost", 0)
		return
	}
	l.Requests[i].End = e
}

func (l *Log) learned(f *file, c *cursor) {
	for range c.count(mostRanks) {
		k := c.count(len(f.ranks))
		s := Speed{Model: f.name(c)}
		if k > 0 {
			s.Rank = f.ranks[k-1].Rank
		}
		s.PerToken, s.PerRequest = c.float(), c.float()
		if c.bad {
			return
		}
		key := Speed{Rank: s.Rank, Model: s.Model}
		if i, known := l.speeds[key]; known {
			l.Speeds[i] = s
			continue
		}
		l.speeds[key] = len(l.Speeds)
		l.Speeds = append(l.Speeds, s)
	}
}

// Done ends the reading: it writes the notes, puts what several processes have decided in the order of time, and
// frees what only reading needs.
func (l *Log) Done() {
	slices.SortStableFunc(l.Requests, func(a, b Request) int { return a.At.Compare(b.At) })
	if len(l.keys) > 1 {
		l.Notes = append(l.Notes, fmt.Sprintf("blocks are named by %d keys (leg.key_file), so what prompts share is not seen where their keys differ", len(l.keys)))
	}
	for _, o := range l.left {
		note := fmt.Sprintf("left out, %d times: %s", o.n, o.why)
		if o.more > 0 {
			note += fmt.Sprintf(" (%d bytes after it)", o.more)
		}
		l.Notes = append(l.Notes, note)
	}
	l.left, l.byNumber, l.speeds, l.latest, l.keys = nil, nil, nil, nil, nil
}

// Blocks returns how many blocks a request's prompt has.
func (l *Log) Blocks(r *Request) int {
	if r.block == 0 {
		return 0
	}
	return int(l.files[r.file].blocks[r.block-1].depth)
}

// Chain appends the hashes of a request's blocks to dst. A block has the same hash in all files of a process.
func (l *Log) Chain(dst []uint64, r *Request) []uint64 {
	from, blocks := len(dst), l.files[r.file].blocks
	for at := r.block; at > 0; at = blocks[at-1].parent {
		dst = append(dst, blocks[at-1].hash)
	}
	slices.Reverse(dst[from:])
	return dst
}

// FleetOf returns the number of the fleet over which a request was decided; below 0: none was written.
func (r *Request) FleetOf() int { return r.fleet }
