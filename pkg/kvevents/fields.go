package kvevents

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// fields are the fields of one event, as views into the payload. Fields of several values
// stay encoded.
type fields struct {
	kind      Kind
	size      int    // bytes of the event; 0 if it was not read to its end
	hashes    []byte // array of hashes
	parent    []byte // one hash; nil: none
	tokens    []byte // array of token ids
	blockSize uint64

	hasAdapter bool // lora_id is set
	adapter    []byte
	cacheSalt  []byte
	extraKeys  []byte // array with one element for each block; nil: none
	mmInfos    []byte // like extraKeys

	medium    []byte
	group     uint64
	specKind  []byte
	locality  []byte
	ownership []byte
}

// readFields reads an event in either encoding from the front of b. vLLM from 0.24 and
// SGLang from 0.5.20 write maps, older versions arrays.
func readFields(b []byte) (f fields, reason Reason, ok bool) {
	if len(b) == 0 {
		return f, Malformed, false
	}
	r := reader{b: b}
	switch {
	case isMap(b[0]):
		f.kind = eventKind(findTag(b))
		if f.kind != 0 {
			f.readMap(&r)
		}
	case isArray(b[0]):
		n := r.array() - 1
		if n < 0 {
			return f, Malformed, false
		}
		f.kind = eventKind(r.text())
		if f.kind != 0 {
			f.readArray(&r, n)
		}
	default:
		return f, Malformed, false
	}
	switch {
	case r.err != nil:
		return f, Malformed, false
	case f.kind == ignored:
		return f, Ignored, false
	case f.kind == 0:
		return f, UnknownEvent, false
	}
	f.size = r.i
	incomplete := f.kind != Cleared && f.hashes == nil || f.kind == Stored && f.tokens == nil
	return f, Malformed, !incomplete
}

func eventKind(tag []byte) Kind {
	switch string(tag) {
	case "BlockStored":
		return Stored
	case "BlockRemoved":
		return Removed
	case "AllBlocksCleared":
		return Cleared
	case "Ignored":
		return ignored
	}
	return 0
}

// findTag returns the value of "type", wherever it stands in the map, or nil.
func findTag(b []byte) []byte {
	r := reader{b: b}
	for n := r.pairs(); n > 0 && r.err == nil; n-- {
		if key := r.textOrSkip(); string(key) == "type" {
			return r.textOrSkip()
		}
		r.skip()
	}
	return nil
}

func (f *fields) readMap(r *reader) {
	for n := r.pairs(); n > 0 && r.err == nil; n-- {
		key := r.textOrSkip()
		if r.nil() {
			continue // absent
		}
		switch string(key) {
		case "block_hashes":
			f.hashes = r.value()
		case "parent_block_hash":
			f.parent = r.value()
		case "token_ids":
			f.tokens = r.value()
		case "block_size":
			f.blockSize = r.unsigned()
		case "lora_id":
			f.hasAdapter = true
			r.skip()
		case "lora_name":
			f.adapter = r.text()
		case "cache_salt":
			f.cacheSalt = r.text()
		case "metadata":
			if !isMap(r.peek()) {
				r.skip()
				break
			}
			salted := reader{b: r.value()}
			f.readSalt(&salted) // a fault in it is ignored: metadata may be about other things
		case "extra_keys":
			f.extraKeys = r.value()
		case "block_mm_infos":
			f.mmInfos = r.value()
		case "medium":
			f.medium = r.text()
		case "group_idx":
			f.group = r.unsigned()
		case "kv_cache_spec_kind":
			f.specKind = r.text()
		case "locality":
			f.locality = r.text()
		case "ownership":
			f.ownership = r.text()
		default:
			r.skip()
		}
	}
}

// readArray reads n positional fields after the tag. Fields that a version did not know
// are missing at the end; fields that it did not use are nil.
func (f *fields) readArray(r *reader, n int) {
	for i := 1; i <= n && r.err == nil; i++ {
		if r.nil() {
			continue
		}
		if f.kind == Stored {
			f.readStoredAt(r, i)
		} else if f.kind == Removed {
			f.readRemovedAt(r, i)
		} else if f.kind == Cleared && i == 1 {
			f.ownership = r.text()
		} else {
			r.skip()
		}
	}
}

func (f *fields) readStoredAt(r *reader, i int) {
	switch i {
	case 1:
		f.hashes = r.value()
	case 2:
		f.parent = r.value()
	case 3:
		f.tokens = r.value()
	case 4:
		f.blockSize = r.unsigned()
	case 5:
		f.hasAdapter = true
		r.skip()
	case 6:
		f.medium = r.text()
	case 7: // vLLM: lora_name. SGLang 0.5.18 to 0.5.19: {"cache_salt": …}.
		if isMap(r.peek()) {
			f.readSalt(r)
		} else {
			f.adapter = r.text()
		}
	case 8:
		f.extraKeys = r.value()
	case 9:
		f.group = r.unsigned()
	case 10:
		f.specKind = r.text()
	case 12:
		f.locality = r.text()
	case 13:
		f.ownership = r.text()
	default: // 11: sliding window; beyond: not known
		r.skip()
	}
}

func (f *fields) readRemovedAt(r *reader, i int) {
	switch i {
	case 1:
		f.hashes = r.value()
	case 2:
		f.medium = r.text()
	case 3:
		f.group = r.unsigned()
	case 4:
		f.locality = r.text()
	case 5:
		f.ownership = r.text()
	default:
		r.skip()
	}
}

// readSalt reads {"cache_salt": s}. A map without a salt that is a string is a fault:
// hashing without the salt would be wrong, and nothing would show it.
func (f *fields) readSalt(r *reader) {
	found := false
	for n := r.pairs(); n > 0 && r.err == nil; n-- {
		if string(r.textOrSkip()) == "cache_salt" {
			f.cacheSalt, found = r.text(), true
		} else {
			r.skip()
		}
	}
	if !found {
		r.fail()
	}
}

// textOrSkip reads a string. A value of another type is skipped, and nil is returned.
func (r *reader) textOrSkip() []byte {
	if !isString(r.peek()) {
		r.skip()
		return nil
	}
	return r.text()
}

func (r *reader) unsigned() uint64 {
	v, neg := r.int()
	if neg {
		r.fail()
	}
	return v
}

// hash reads an engine hash in any of its forms: unsigned, signed (the same 64 bits), or
// bytes, of which the last eight are taken, big-endian.
func (r *reader) hash() kvindex.EngineHash {
	if !isBin(r.peek()) {
		v, _ := r.int()
		return kvindex.EngineHash(v)
	}
	b := r.bin()
	if len(b) < 8 {
		r.fail()
		return 0
	}
	return kvindex.EngineHash(binary.BigEndian.Uint64(b[len(b)-8:]))
}

func appendHashes(dst []kvindex.EngineHash, array []byte) ([]kvindex.EngineHash, bool) {
	r := reader{b: array}
	return r.appendHashes(dst, r.array())
}

func (r *reader) appendHashes(dst []kvindex.EngineHash, n int) ([]kvindex.EngineHash, bool) {
	for ; n > 0 && r.err == nil; n-- {
		dst = append(dst, r.hash())
	}
	return dst, r.err == nil
}

// appendTokens appends the n token ids of a store. They may come as pairs, each of which
// begins with the second token of the pair before: [a b] [b c] are the tokens a, b, c.
// wide is the index of the first token with more than 32 bits (SGLang has such ids in the
// place of a picture), or the number of tokens if there is none.
func appendTokens(dst []uint32, r *reader, n int) (tokens []uint32, wide int, pairs, ok bool) {
	wide = math.MaxInt
	pairs = n > 0 && isArray(r.peek())
	if pairs {
		dst, wide = appendPairs(dst, r, n)
		return dst, min(wide, len(dst)), true, r.err == nil
	}
	dst = slices.Grow(dst, n)
	for ; n > 0 && r.err == nil; n-- {
		// Nearly all token ids have one of these two forms.
		if b := r.b[r.i:]; len(b) > 4 && b[0] == 0xcd {
			dst = append(dst, uint32(b[1])<<8|uint32(b[2]))
			r.i += 3
		} else if len(b) > 4 && b[0] == 0xce {
			dst = append(dst, binary.BigEndian.Uint32(b[1:]))
			r.i += 5
		} else {
			t := r.token()
			if t > math.MaxUint32 {
				wide = min(wide, len(dst))
			}
			dst = append(dst, uint32(t)) //nolint:gosec // wide ids are not used
		}
	}
	return dst, min(wide, len(dst)), false, r.err == nil
}

func appendPairs(dst []uint32, r *reader, n int) (tokens []uint32, wide int) {
	wide = math.MaxInt
	add := func(t uint64) {
		if t > math.MaxUint32 {
			wide = min(wide, len(dst))
		}
		dst = append(dst, uint32(t)) //nolint:gosec // as above
	}
	for i := 0; i < n && r.err == nil; i++ {
		if r.array() != 2 {
			r.fail()
		}
		first, second := r.token(), r.token()
		switch {
		case i == 0:
			add(first)
		case dst[len(dst)-1] != uint32(first): //nolint:gosec // as above
			r.fail()
		}
		add(second)
	}
	return dst, wide
}

// token reads a token id, which may have more than 32 bits.
func (r *reader) token() uint64 {
	if c := r.peek(); c < 0x80 {
		r.i++
		return uint64(c)
	}
	v, neg := r.int()
	if neg {
		r.fail()
	}
	return v
}
