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
// adapter and salt: the hashes of multimodal objects. It reuses its buffers.
type blockKeys struct {
	hashes []uint64
	ends   []int // of each block's hashes; empty: no block has any
}

func (k *blockKeys) any() bool { return len(k.hashes) > 0 }

// of returns the hashes of block i in the order in which they are hashed.
func (k *blockKeys) of(i int) []uint64 {
	if i >= len(k.ends) {
		return nil
	}
	from := 0
	if i > 0 {
		from = k.ends[i-1]
	}
	return k.hashes[from:k.ends[i]]
}

// end closes the list of one block.
func (k *blockKeys) end() {
	from := 0
	if n := len(k.ends); n > 0 {
		from = k.ends[n-1]
	}
	slices.Sort(k.hashes[from:])
	k.ends = append(k.ends, len(k.hashes))
}

// read reads the keys of an event of so many blocks, and returns how many
// leading ones depend on nothing that is not understood. A salt among the keys
// of the first block is put into salt. Explicit multimodal infos are preferred
// to what the keys tell of them.
func (k *blockKeys) read(f *fields, blocks int, salt *kvindex.Salt) (usable int, ok bool) {
	k.hashes, k.ends = k.hashes[:0], k.ends[:0]
	usable = blocks
	if f.extraKeys != nil {
		if usable, ok = k.readExtra(f.extraKeys, blocks, f.parent == nil, salt); !ok {
			return 0, false
		}
	}
	if f.mmInfos != nil {
		k.hashes, k.ends = k.hashes[:0], k.ends[:0]
		return usable, k.readInfos(f.mmInfos)
	}
	return usable, true
}

// readExtra reads an array with nil or an array of keys for each block; a key
// is a text, or an array that begins with one. Keys may be given for fewer
// blocks than there are. first: the first block begins a prompt. There, vLLM has the
// request's cache_salt as a bare text (kv_cache_utils.py generate_block_hash_extra_keys).
func (k *blockKeys) readExtra(array []byte, blocks int, first bool, salt *kvindex.Salt) (usable int, ok bool) {
	r := reader{b: array}
	usable = blocks
	for i, n := 0, r.array(); i < n && r.err == nil; i++ {
		if r.nil() {
			k.end()
			continue
		}
		for left := r.array(); left > 0 && r.err == nil; left-- {
			bare := !isArray(r.peek())
			key := r.key()
			if mm, ok := multimodalHash(key); ok {
				k.hashes = append(k.hashes, mm)
			} else if i == 0 && bytes.HasPrefix(key, saltKey) {
				salt.CacheSalt = string(key[len(saltKey):])
			} else if key != nil && string(key) == salt.LoRA {
				continue
			} else if i == 0 && first && bare && len(key) > 0 && len(key) != digestLen {
				salt.CacheSalt = string(key)
			} else {
				usable = min(usable, i)
			}
		}
		k.end()
	}
	return usable, r.err == nil
}

// key reads one key and returns its text, nil where it has none.
func (r *reader) key() []byte {
	if !isArray(r.peek()) {
		return r.textOrSkip()
	}
	var key []byte
	for i, n := 0, r.array(); i < n && r.err == nil; i++ {
		if i == 0 {
			key = r.textOrSkip()
		} else {
			r.skip()
		}
	}
	return key
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
				k.hashes = append(k.hashes, v)
			}
		}
	}
}

// spaces holds the cache salt of each block that has one. Engines name it with
// the first block of a prompt only; those after it have it by their parent.
type spaces map[kvindex.EngineHash]space

type space struct {
	salt      string
	tiers     uint8 // where the block is
	ambiguous bool  // the block was stored under several salts
}

// inherit returns the salt of an event: its own, else its parent's. It is not
// ok where the parent's is not known for certain.
func (s spaces) inherit(e *kvindex.Stored, own string) (salt string, ok bool) {
	if own != "" || !e.HasParent || len(s) == 0 {
		return own, true
	}
	p := s[e.Parent]
	return p.salt, !p.ambiguous
}

// note remembers the salt of blocks that were stored on a tier.
func (s *spaces) note(blocks []kvindex.EngineHash, salt string, t kvindex.Tier) {
	if salt == "" && len(*s) == 0 {
		return
	}
	if *s == nil {
		*s = make(spaces)
	}
	for _, h := range blocks {
		held, known := (*s)[h]
		switch {
		case known:
			held.ambiguous = held.ambiguous || held.salt != salt
		case salt == "":
			continue
		default:
			held.salt = salt
		}
		held.tiers |= 1 << t
		(*s)[h] = held
	}
}

// take notes that blocks are on a tier no more.
func (s spaces) take(blocks []kvindex.EngineHash, t kvindex.Tier) {
	if len(s) == 0 {
		return
	}
	for _, h := range blocks {
		held, known := s[h]
		if !known {
			continue
		}
		if held.tiers &^= 1 << t; held.tiers == 0 {
			delete(s, h)
		} else {
			s[h] = held
		}
	}
}
