package record

import (
	"encoding/binary"
	"sort"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// encoder writes the frames of one file after the other. It is not safe for concurrent use.
type encoder struct {
	out     []byte // frames that are not yet written to the file
	payload []byte

	// Of the present file.
	began  time.Time
	names  map[string]uint64
	ranks  map[worker.Rank]int // numbers from 1
	loads  []Load              // as last told, by number - 1
	blocks map[uint64]uint32   // numbers from 1
	latest uint64              // request
	speeds map[Speed]Speed     // as last told, without the numbers in the key
}

// header is what each file begins with.
type header struct {
	Version   string
	Began     time.Time
	Life, Key uint64
}

// begin begins a file.
func (e *encoder) begin(h *header, fleet []Rank) {
	e.began, e.latest = h.Began, 0
	e.names, e.blocks, e.speeds = map[string]uint64{}, map[uint64]uint32{}, map[Speed]Speed{}
	e.out = append(e.out[:0], magic...)
	p := appendText(e.payload[:0], h.Version)
	p = binary.AppendVarint(p, h.Began.UnixNano())
	p = binary.LittleEndian.AppendUint64(p, h.Life)
	e.put(frameHeader, binary.LittleEndian.AppendUint64(p, h.Key))
	e.fleet(fleet)
}

func (e *encoder) put(kind byte, payload []byte) {
	e.out = frame(e.out, kind, payload)
	e.payload = payload[:0]
}

// name returns the number of a text, which it writes before if it is new.
func (e *encoder) name(s string) uint64 {
	s = s[:min(len(s), mostName)]
	if s == "" || e.names[s] > 0 {
		return e.names[s]
	}
	if len(e.names) == mostNames {
		return 0
	}
	e.names[s] = uint64(len(e.names)) + 1
	e.out = frame(e.out, frameName, []byte(s))
	return e.names[s]
}

func (e *encoder) fleet(ranks []Rank) {
	ranks = ranks[:min(len(ranks), mostRanks)]
	e.ranks, e.loads = make(map[worker.Rank]int, len(ranks)), make([]Load, len(ranks))
	p := binary.AppendUvarint(e.payload[:0], uint64(len(ranks)))
	for i := range ranks {
		r := &ranks[i]
		e.ranks[r.Rank] = i + 1
		p = binary.AppendUvarint(p, uint64(r.Rank.ID))
		p = binary.AppendUvarint(p, uint64(r.Rank.DPRank))
		told := byte(0)
		if r.Told {
			told = 1
		}
		p = append(p, byte(r.Role), told)
		for _, n := range [...]uint64{e.name(r.Engine), e.name(r.Model), e.name(r.Domain), uint64(max(r.BlockSize, 0)), uint64(max(r.Capacity, 0))} {
			p = binary.AppendUvarint(p, n)
		}
		p = appendText(p, r.Endpoint)
	}
	if len(p) > mostFrame {
		e.ranks, p = map[worker.Rank]int{}, []byte{0}
	}
	e.put(frameFleet, p)
}

// decision writes a decision, whose Chain has keyed hashes.
func (e *encoder) decision(number uint64, d *Decision) {
	model, source, refused := e.name(d.Model), e.name(d.Source), e.name(d.Refused)
	var picks [2][2]uint64
	for i, k := range [...]*Pick{&d.Prefill, &d.Decode} {
		picks[i] = [2]uint64{e.name(k.Mode), e.name(k.Reason)}
	}
	p := binary.AppendVarint(e.payload[:0], int64(d.At.Sub(e.began)))
	p = binary.AppendVarint(p, int64(number-e.latest)) //nolint:gosec // a difference
	e.latest = number
	flags := uint64(0)
	if d.Bound {
		flags = 1
	}
	for _, n := range [...]uint64{flags, model, source, refused, uint64(max(d.Attempt, 0)), uint64(max(d.Tokens, 0)), uint64(max(d.BlockTokens, 0))} {
		p = binary.AppendUvarint(p, n)
	}
	p = binary.AppendVarint(p, d.MaxTokens)
	p = binary.AppendVarint(p, int64(d.Target))
	p = e.chain(p, d.Chain)
	p = e.changed(p, d.Loads)
	for i, k := range [...]*Pick{&d.Prefill, &d.Decode} {
		at, known := e.ranks[k.Rank]
		switch {
		case k.Rank.ID == 0:
			p = append(p, 0)
			continue
		case known:
			p = binary.AppendUvarint(p, uint64(at)+1) //nolint:gosec // above 0
		default:
			p = binary.AppendUvarint(append(p, 1), uint64(k.Rank.ID))
			p = binary.AppendUvarint(p, uint64(k.Rank.DPRank))
		}
		for _, n := range [...]uint64{picks[i][0], picks[i][1], uint64(max(k.Overlap, 0))} {
			p = binary.AppendUvarint(p, n)
		}
	}
	e.put(frameDecision, p)
}

// chain writes a prompt's blocks: what is known of it by one number. With a block those before it are known.
func (e *encoder) chain(p []byte, chain []uint64) []byte {
	known := sort.Search(len(chain), func(i int) bool { return e.blocks[chain[i]] == 0 })
	at := uint32(0)
	if known > 0 {
		at = e.blocks[chain[known-1]]
	}
	p = binary.AppendUvarint(p, uint64(at))
	p = binary.AppendUvarint(p, uint64(len(chain)-known))
	for _, h := range chain[known:] {
		p = binary.LittleEndian.AppendUint64(p, h)
		e.blocks[h] = uint32(len(e.blocks)) + 1 //nolint:gosec // bounded by mostBlocks and a chain
	}
	return p
}

// changed writes the loads that are not as they were last written.
func (e *encoder) changed(p []byte, loads []Load) []byte {
	count := len(p)
	p = append(p, 0)
	for i := range loads {
		l := loads[i]
		k := e.ranks[l.Rank]
		if k == 0 || e.loads[k-1] == l || p[count] == 127 {
			continue
		}
		was := &e.loads[k-1]
		p = binary.AppendUvarint(p, uint64(k)) //nolint:gosec // above 0
		for _, n := range [...]int64{l.PrefillTokens - was.PrefillTokens, l.DecodeBlocks - was.DecodeBlocks, l.Requests - was.Requests} {
			p = binary.AppendVarint(p, n)
		}
		*was = l
		p[count]++
	}
	return p
}

func (e *encoder) end(x *End) {
	outcome := e.name(x.Outcome)
	p := binary.AppendVarint(e.payload[:0], int64(e.latest-x.Number)) //nolint:gosec // a difference
	p = binary.AppendUvarint(p, outcome)
	for _, n := range [...]int64{int64(x.First), int64(x.Whole), x.Output, x.Cached} {
		p = binary.AppendVarint(p, n)
	}
	e.put(frameEnd, p)
}

// learned writes the speeds that are not as they were last written.
func (e *encoder) learned(speeds []Speed) {
	n, p := 0, []byte(nil)
	for _, s := range speeds {
		key := Speed{Rank: s.Rank, Model: s.Model}
		if e.speeds[key] == s || n == mostRanks || len(p) > mostFrame/2 {
			continue
		}
		e.speeds[key] = s
		n++
		p = binary.AppendUvarint(p, uint64(e.ranks[s.Rank])) //nolint:gosec // above 0
		p = binary.AppendUvarint(p, e.name(s.Model))
		p = appendFloat(appendFloat(p, s.PerToken), s.PerRequest)
	}
	if n > 0 {
		e.put(frameSpeeds, append(binary.AppendUvarint(e.payload[:0], uint64(n)), p...))
	}
}
