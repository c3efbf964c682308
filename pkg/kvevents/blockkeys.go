package kvevents

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// saltKey begins the key in which Dynamo's vLLM passes a cache salt.
var saltKey = []byte("dynamo-cache-salt:")

// blockKeys is what the blocks of one store depend on besides their tokens, adapter and
// salt: pictures and other multimodal objects. Its buffers are reused.
type blockKeys struct {
	keys   []uint64 // as kvindex.AppendKeyedHash takes them
	ends   []int    // index in keys of each block's end; empty: no block has keys
	most   int      // pictures in one block; a block cannot have more than it has tokens
	placed bool     // keys of the block that is read came with their places
}

func (k *blockKeys) any() bool { return len(k.keys) > 0 }

// of returns the keys of block i, in the order in which they are hashed.
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

// begun returns the keys read so far of the current block.
func (k *blockKeys) begun() []uint64 {
	if n := len(k.ends); n > 0 {
		return k.keys[k.ends[n-1]:]
	}
	return k.keys
}

// end closes the list of the current block. Hashes without a place are hashed in rising
// order, as Dynamo's router does.
func (k *blockKeys) end() {
	if !k.placed {
		slices.Sort(k.begun())
	}
	k.placed = false
	k.ends = append(k.ends, len(k.keys))
}

// read reads the keys of an event with so many blocks. usable is how many leading blocks
// depend only on things that can be read. A salt among the keys of the first block is put
// into salt. If the event has explicit multimodal infos, these replace the hashes among
// the keys. False means that the event is malformed.
func (k *blockKeys) read(f *fields, blocks int, salt *kvindex.Salt) (usable int, ok bool) {
	k.keys, k.ends = k.keys[:0], k.ends[:0]
	usable = blocks
	if f.extraKeys != nil {
		usable, ok = k.readExtra(f.extraKeys, blocks, f.parent == nil, salt)
		if !ok {
			return 0, false
		}
	}
	if f.mmInfos != nil {
		k.keys, k.ends = k.keys[:0], k.ends[:0]
		return usable, k.readInfos(f.mmInfos)
	}
	return usable, true
}

// readExtra reads an array that has, for each block, nil or an array of keys. A key is a
// text, or a picture with its place. There may be fewer elements than blocks. first says
// that the first block begins a prompt: there, vLLM has the request's cache_salt as a
// bare text (docs/engines.md#event-pictures). Some versions also write the name of a
// picture as a bare text. It is then read as a salt, which no prompt names, so such
// blocks match nothing. A block with both is left out.
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

// readBlock reads the keys of one block. False means that the block depends on something
// that cannot be read. head says that it is the event's first block, first that it also
// begins a prompt.
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
			adapter = "" // a salt may have the same text as the adapter
		case first && len(key) > 0 && !salted:
			salt.CacheSalt, salted = string(key), true
		default:
			usable = false
		}
	}
	return usable
}

// readPicture reads the name of a picture and where it begins, counted from the block's
// first token (docs/engines.md#event-pictures). False means that the key is something
// else, or that the block has too many pictures.
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

// digestLen is the length of a multimodal object's name, as engines write it.
const digestLen = 64

// multimodalHash reads the form in which Dynamo's workers pass the hash of a multimodal
// object: 16 hexadecimal digits and 48 zeros. A digest that an engine makes has the same
// length but does not end in zeros, so false is returned for it.
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
