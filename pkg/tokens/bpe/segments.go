package bpe

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"sync"

	"github.com/seed-60ae5743/baton/internal/invariants"
)

// Segments remembers the tokens of segments: texts that nothing merges with, whatever
// stands around them. Those of a conversation that goes on are found again by their
// content, and only what is new is encoded.
//
// The tokens lie in one ring, and the newest take the place of the oldest. A segment that
// is used again before that moves to the front. Safe for concurrent use.
type Segments struct {
	t        *Tokenizer
	seeds    [2]maphash.Seed
	maxIDs   uint64
	maxSlots int

	mu    sync.RWMutex // guards the fields below; no function of others is called while it is held
	ids   []uint32     // the ring; it grows up to maxIDs
	head  uint64       // how many ids were ever written: the next goes to head modulo maxIDs
	slots []slot       // in buckets of bucketSlots
	used  int          // slots that are not free
}

// segmentKey names a segment by two hashes of its content, whose seeds are this
// process's secret: without them nobody can make two segments with one name, and by
// chance two of a billion segments share one with a probability below 10^-20.
type segmentKey struct{ low, high uint64 }

// slot is where one segment's tokens are. A slot whose ids were written over counts as
// free.
type slot struct {
	key segmentKey
	at  uint64 // when the first id was written, in ids
	n   uint32 // 0: free
}

const (
	bucketSlots = 8
	slotBytes   = 32
	// shortSegment is up to how many bytes a segment is encoded each time: as fast as
	// finding it.
	shortSegment = 32
	// longPart is from how many bytes on a text between added tokens is a segment by itself.
	longPart = 256
	// chunkBytes is from how many bytes on a segment ends at a line, where that is a border.
	chunkBytes = 2048
)

// NewSegments returns an empty memory of at most maxBytes, a quarter of it for the names.
func NewSegments(t *Tokenizer, maxBytes int) *Segments {
	s := &Segments{t: t, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	s.maxIDs = uint64(max(maxBytes, 0)) / 4 * 3 / 4
	for s.maxSlots = bucketSlots; s.maxSlots*2*slotBytes <= maxBytes/4; {
		s.maxSlots *= 2
	}
	s.slots = make([]slot, min(s.maxSlots, 1024))
	return s
}

// Append is [Encoder.Append] with what is remembered. e must be an encoder of the same
// tokenizer.
func (s *Segments) Append(e *Encoder, dst []uint32, text []byte, special bool) ([]uint32, error) {
	return e.append(dst, text, special, s)
}

// parts encodes a text with its added tokens. Short parts in a row are one segment, with
// the tokens between them. A token that took spaces along is not the end of a segment,
// since the next token is sought from before these spaces on.
func (s *Segments) parts(e *Encoder, text []byte) error {
	from := 0 // where the short parts begin
	for p := range e.t.between(text) {
		alone := p.clean && p.end-p.begin > longPart
		to := p.rest
		if alone {
			to = p.begin
		}
		if alone || p.id == none || p.clean && to-from > chunkBytes/2 {
			err := s.segment(e, text[from:to], from == 0)
			if err != nil {
				return err
			}
			from = to
		}
		if !alone {
			continue
		}
		err := s.long(e, text[p.begin:p.end], p.taken == 0)
		if err != nil {
			return err
		}
		if p.id != none {
			e.out = append(e.out, p.id)
		}
		from = p.rest
	}
	return nil
}

// long encodes a long text without added tokens, in segments that end at a line where
// they can.
func (s *Segments) long(e *Encoder, text []byte, first bool) error {
	for len(text) > 0 {
		n := e.t.border(text)
		err := s.segment(e, text[:n], first)
		if err != nil {
			return err
		}
		text, first = text[n:], false
	}
	return nil
}

// segment appends the tokens of one segment to e.out.
func (s *Segments) segment(e *Encoder, text []byte, first bool) error {
	if len(text) <= shortSegment {
		return e.parts(text, first)
	}
	k := s.key(text, first)
	if s.find(e, k) {
		return nil
	}
	from := len(e.out)
	err := e.parts(text, first)
	if err != nil {
		return err
	}
	s.put(k, e.out[from:])
	return nil
}

func (s *Segments) key(text []byte, first bool) segmentKey {
	k := segmentKey{maphash.Bytes(s.seeds[0], text), maphash.Bytes(s.seeds[1], text)}
	if first && s.t.meta != nil && s.t.meta.first {
		k.high = ^k.high // the beginning of a text has other tokens
	}
	return k
}

// find appends the tokens of a segment to e.out, if they are there.
func (s *Segments) find(e *Encoder, k segmentKey) bool {
	s.mu.RLock()
	found := s.slot(k)
	if found == nil {
		s.mu.RUnlock()
		return false
	}
	at, n := found.at%s.maxIDs, uint64(found.n)
	old := s.head-found.at > s.maxIDs/2
	e.out = append(e.out, s.ids[at:min(at+n, s.maxIDs)]...)
	if at+n > s.maxIDs {
		e.out = append(e.out, s.ids[:at+n-s.maxIDs]...)
	}
	s.mu.RUnlock()
	if old {
		s.put(k, e.out[len(e.out)-int(n):])
	}
	return true
}

// slot returns the slot of a segment, or nil. The caller holds s.mu.
func (s *Segments) slot(k segmentKey) *slot {
	b := s.bucket(k)
	for i := range b {
		if b[i].key == k && s.holds(&b[i]) {
			return &b[i]
		}
	}
	return nil
}

func (s *Segments) bucket(k segmentKey) []slot {
	i := int(k.low&uint64(len(s.slots)/bucketSlots-1)) * bucketSlots
	return s.slots[i : i+bucketSlots]
}

// holds reports whether a slot's ids are still in the ring.
func (s *Segments) holds(v *slot) bool { return v.n > 0 && s.head-v.at <= s.maxIDs }

// put writes a segment's tokens to the front. A segment that takes more than a quarter of
// the ring is not kept.
func (s *Segments) put(k segmentKey, ids []uint32) {
	n := uint64(len(ids))
	if n == 0 || n > s.maxIDs/4 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.slot(k)
	if v != nil && s.head-v.at <= s.maxIDs/2 {
		return // another request was faster
	}
	if v == nil {
		v = s.room(k)
	}
	*v = slot{k, s.head, uint32(n)}
	s.write(ids)
	if invariants.Enabled && s.head%(1<<14) < n {
		err := s.checkLocked()
		invariants.Check(err == nil, "%v", err)
	}
}

// room returns a slot for a segment. While there may be more slots, a full bucket is a
// reason for more, so that nothing that a conversation uses is lost; then the oldest of
// the bucket goes.
func (s *Segments) room(k segmentKey) *slot {
	v := s.free(k)
	for (v == nil || s.used*2 > len(s.slots)) && len(s.slots) < s.maxSlots {
		s.grow()
		v = s.free(k)
	}
	if v == nil {
		b := s.bucket(k)
		v = &b[0]
		for i := range b {
			if b[i].at < v.at {
				v = &b[i]
			}
		}
	}
	if v.n == 0 {
		s.used++
	}
	return v
}

// free returns a slot of a segment's bucket that holds nothing, or nil.
func (s *Segments) free(k segmentKey) *slot {
	b := s.bucket(k)
	for i := range b {
		if !s.holds(&b[i]) {
			return &b[i]
		}
	}
	return nil
}

// grow doubles the slots.
func (s *Segments) grow() {
	old := s.slots
	s.slots, s.used = make([]slot, 2*len(old)), 0
	for i := range old {
		if s.holds(&old[i]) {
			*s.free(old[i].key) = old[i] // a bucket's slots go to two buckets, so there is room
			s.used++
		}
	}
}

// write appends ids to the ring.
func (s *Segments) write(ids []uint32) {
	for len(ids) > 0 {
		at := s.head % s.maxIDs
		if at == uint64(len(s.ids)) && at < s.maxIDs {
			s.ids = extend(s.ids, len(ids), int(s.maxIDs))
		}
		n := copy(s.ids[at:], ids)
		s.head += uint64(n)
		ids = ids[n:]
	}
}

// extend lengthens a slice by n, up to most. Its room doubles, and never exceeds most.
func extend(ids []uint32, n, most int) []uint32 {
	n = min(len(ids)+n, most)
	if n > cap(ids) {
		grown := make([]uint32, len(ids), min(max(n, 2*cap(ids)), most))
		copy(grown, ids)
		ids = grown
	}
	return ids[:n]
}

// border returns where the first segment of a text between added tokens ends: all of it,
// or a line after which nothing depends on what stands before. It depends on no more than
// the character after the border, so a longer text has the same borders.
func (t *Tokenizer) border(text []byte) int {
	if !t.lines {
		return len(text)
	}
	for i := chunkBytes; i < len(text); i++ {
		n := bytes.IndexByte(text[i-1:len(text)-1], '\n')
		if n < 0 {
			break
		}
		i += n
		b := text[i]
		letter := b|0x20 >= 'a' && b|0x20 <= 'z' || b >= '0' && b <= '9'
		if letter && (t.byteLevel || t.merges.borders('\n', rune(b))) {
			return i
		}
	}
	return len(text)
}

// cutsLines reports whether a line break and a letter or digit after it, of ASCII, have a
// border between them in any text: the patterns end a piece there whatever comes before
// and after, and normalization changes each side by itself. Where tokens are made of
// characters, the border must also be one that no merge reaches over.
func (t *Tokenizer) cutsLines() bool {
	for i := range t.changes {
		c := &t.changes[i]
		if c.prepend != nil || bytes.IndexByte(c.old, '\n') >= 0 {
			return false
		}
	}
	if t.meta != nil && (t.meta.always || t.meta.first) || t.after != nil && t.after.lines {
		return false
	}
	if !t.byteLevel && t.symbols.whole != nil {
		return false
	}
	cuts := !t.byteLevel
	for _, st := range t.stages {
		switch p := st.pattern.(type) {
		case words, cased, deepSeek:
			cuts = true
		case numbers, eastAsian, digits:
		case literal:
			if t.byteLevel || bytes.IndexByte(p, '\n') >= 0 {
				return false
			}
			continue
		default:
			return false
		}
		if st.behavior != isolated && st.behavior != matchesOnly {
			return false
		}
	}
	return cuts
}

// checkLocked walks the slots and returns the first breach: a segment is in its bucket,
// once, and its ids were written.
func (s *Segments) checkLocked() error {
	used := 0
	for i := range s.slots {
		v := &s.slots[i]
		if v.n == 0 {
			continue
		}
		used++
		if v.at+uint64(v.n) > s.head {
			return fmt.Errorf("bpe: slot %d: ids up to %d of %d", i, v.at+uint64(v.n), s.head)
		}
		if s.holds(v) && s.slot(v.key) != v {
			return fmt.Errorf("bpe: slot %d: another slot has its segment", i)
		}
	}
	if used != s.used || len(s.ids) > int(s.maxIDs) || len(s.slots) > s.maxSlots {
		return fmt.Errorf("bpe: %d of %d slots used, %d ids: %d counted, at most %d", used, len(s.slots), len(s.ids), s.used, s.maxIDs)
	}
	return nil
}
