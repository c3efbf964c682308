package kvevents

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// saltKey is how Dynamo's vLLM passes a cache namespace in a block's keys.
var saltKey = []byte("dynamo-cache-salt:")

// blockKeys is what the blocks of one store depend on besides their tokens,
// adapter and salt: the pictures in them, and other multimodal objects. It reuses
// its buffers.
type blockKeys struct {
	keys   []uint64 // as kvindex.AppendKeyedHash takes them
	ends   []int    // of each block's keys; empty: no block has any
	most   int      // pictures that a block may have: no more than tokens
	placed bool     // those of the block that is read are told with their places
}

func (k *blockKeys) any() bool { return len(k.keys) > 0 }

// of returns the keys of block i in the order in which they are hashed.
func (k *blockKeys) of(i int) []uint64 {
	if i >= len(k.ends) {
		return nil
	}
	from := 0
	if i > 0 {
		from = k.ends[i-1]
	}
	return k.keys[from:k.ends[i]]
}

// begun returns the keys so far of the block that is read.
func (k *blockKeys) begun() []uint64 {
	if n := len(k.ends); n > 0 {
		return k.keys[k.ends[n-1]:]
	}
	return k.keys
}

// end closes the list of one block. Hashes without a place are hashed in rising order,
// as Dynamo's router does.
func (k *blockKeys) end() {
	if !k.placed {
		slices.Sort(k.begun())
	}
	k.placed = false
	k.ends = append(k.ends, len(k.keys))
}

// read reads the keys of an event of so many blocks, and returns how many
// leading ones depend on nothing that is not understood. A salt among the keys
// of the first block is put into salt. Explicit multimodal infos are preferred
// to what the keys tell of them.
func (k *blockKeys) read(f *fields, blocks int, salt *kvindex.Salt) (usable int, ok bool) {
	k.keys, k.ends = k.keys[:0], k.ends[:0]
	usable = blocks
	if f.extraKeys != nil {
		if usable, ok = k.readExtra(f.extraKeys, blocks, f.parent == nil, salt); !ok {
			return 0, false
		}
	}
	if f.mmInfos != nil {
		k.keys, k.ends = k.keys[:0], k.ends[:0]
		return usable, k.readInfos(f.mmInfos)
	}
	return usable, true
}

// readExtra reads an array with nil or an array of keys for each block; a key is a text, or
// a picture with its place. Keys may be given for fewer blocks than there are. first: the
// first block begins a prompt. There, vLLM has the request's cache_salt as a bare text
// (docs/engines.md#event-pictures). Versions that write the name of a picture bare as well
// are taken to mean a salt, which no prompt names: such blocks match nothing, and what has
// both is left out.
func (k *blockKeys) readExtra(array []byte, blocks int, first bool, salt *kvindex.Salt) (usable int, ok bool) {
	r := reader{b: array}
	usable = blocks
	for i, n := 0, r.array(); i < n && r.err == nil; i++ {
		if r.nil() {
			k.end()
			continue
		}
		if !k.readBlock(&r, i == 0, i == 0 && first, salt) {
			usable = min(usable, i)
		}
		k.end()
	}
	return usable, r.err == nil
}

// readBlock reads the keys of one block, and reports whether it depends on nothing
// that is not understood. head: it is the event's first; first: it begins a prompt.
func (k *blockKeys) readBlock(r *reader, head, first bool, salt *kvindex.Salt) (usable bool) {
	usable = true
	adapter := salt.LoRA
	salted := false
	for left := r.array(); left > 0 && r.err == nil; left-- {
		if isArray(r.peek()) {
			usable = k.readPicture(r) && usable
			continue
		}
		key := r.textOrSkip()
		mm, isObject := multimodalHash(key)
		switch {
		case isObject:
			k.keys = append(k.keys, mm)
		case head && bytes.HasPrefix(key, saltKey) && !salted:
			salt.CacheSalt, salted = string(key[len(saltKey):]), true
		case len(key) > 0 && string(key) == adapter:
			adapter = "" // a salt may have the same name
		case first && len(key) > 0 && !salted:
			salt.CacheSalt, salted = string(key), true
		default:
			usable = false
		}
	}
	return usable
}

// readPicture reads the name of a picture and where it begins, counted from the block's
// first token (docs/engines.md#event-pictures), and reports whether it is that.
func (k *blockKeys) readPicture(r *reader) bool {
	n := r.array()
	if n != 2 || !isString(r.peek()) {
		for range n {
			r.skip()
		}
		return false
	}
	hash, ok := kvindex.HashMMIdentifier(r.text())
	if !isInt(r.peek()) {
		r.skip()
		return false
	}
	offset, _ := r.int()
	if !ok || len(k.begun()) >= 2*k.most {
		return false
	}
	k.placed = true
	k.keys = kvindex.Picture{Hash: hash, Offset: int(offset)}.AppendKeys(k.keys) //nolint:gosec // a bit pattern
	return true
}

// digestLen is how long the names of multimodal objects are, as engines write them.
const digestLen = 64

// multimodalHash reads the form in which Dynamo's workers pass the hash of a
// multimodal object: 16 hexadecimal digits and 48 zeros. Digests that an engine
// makes by itself are of the same length and are not taken for one.
func multimodalHash(key []byte) (uint64, bool) {
	if len(key) != digestLen || strings.TrimLeft(string(key[16:]), "0") != "" {
		return 0, false
	}
	v, err := strconv.ParseUint(string(key[:16]), 16, 64)
	return v, err == nil
}

// readInfos reads an array with nil or {"mm_objects": [{"mm_hash": h, …}, …]}
// for each block.
func (k *blockKeys) readInfos(array []byte) bool {
	r := reader{b: array}
	for n := r.array(); n > 0 && r.err == nil; n-- {
		if !r.nil() {
			k.readInfo(&r)
		}
		k.end()
	}
	return r.err == nil
}

func (k *blockKeys) readInfo(r *reader) {
	for n := r.pairs(); n > 0 && r.err == nil; n-- {
		if key := r.textOrSkip(); string(key) != "mm_objects" {
			r.skip()
			continue
		}
		for objects := r.array(); objects > 0 && r.err == nil; objects-- {
			for fields := r.pairs(); fields > 0 && r.err == nil; fields-- {
				if key := r.textOrSkip(); string(key) != "mm_hash" {
					r.skip()
					continue
				}
				v, _ := r.int()
				k.keys = append(k.keys, v)
			}
		}
	}
}
