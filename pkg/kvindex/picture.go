package kvindex

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/zeebo/xxh3"
)

// Picture is a multimodal object of a prompt. Length tokens from Offset on stand for
// it; they are the same whatever the picture shows.
type Picture struct {
	Hash           uint64 // see HashMMIdentifier
	Offset, Length int    // in tokens; Offset is negative if the block begins within the picture
}

// AppendKeys appends to dst what the hash of a block depends on for a picture in the
// block: which picture it is, and where it begins, as in vLLM. The picture's Offset
// counts from the first token of the block.
func (p Picture) AppendKeys(dst []uint64) []uint64 { return append(dst, p.Hash, uint64(p.Offset)) }

// AppendPictureHashes is AppendLocalHashes, or with eagle AppendPairHashes, for a
// prompt with pictures. The pictures are in the order of their offsets and do not
// overlap.
func AppendPictureHashes(dst []LocalHash, tokens []uint32, pictures []Picture, blockSize int, eagle bool, seed uint64) []LocalHash {
	if blockSize < 1 {
		return dst
	}
	window := blockSize
	if eagle {
		window++
	}
	var keys []uint64
	var scratch []uint32
	for from := 0; from+window <= len(tokens); from += blockSize {
		for len(pictures) > 0 && pictures[0].Offset+pictures[0].Length <= from {
			pictures = pictures[1:]
		}
		keys = keys[:0]
		for _, p := range pictures {
			if p.Offset >= from+blockSize {
				break
			}
			p.Offset -= from
			keys = p.AppendKeys(keys)
		}
		dst = AppendKeyedHash(dst, tokens[from:from+window], keys, seed, &scratch)
	}
	return dst
}

// AppendKeyedHash appends the hash of one block of tokens that also depends on keys.
// Each key is hashed as two tokens behind the block's own, since they have the same
// form in memory. The slice that scratch points to, which may be nil, is used as
// memory.
func AppendKeyedHash(dst []LocalHash, tokens []uint32, keys []uint64, seed uint64, scratch *[]uint32) []LocalHash {
	w := append((*scratch)[:0], tokens...)
	for _, k := range keys {
		w = append(w, uint32(k), uint32(k>>32)) //nolint:gosec // its two halves
	}
	*scratch = w
	return appendWindows(dst, w, len(w), len(w), seed)
}

// digestLen is the number of hexadecimal digits in the names that vLLM gives to
// pictures.
const digestLen = 64

// HashMMIdentifier returns the hash of a multimodal object from its name, as Dynamo's
// router does: the first 16 digits of a digest of 64 hexadecimal digits, or XXH3 with
// the seed 0 of any other name. False means that the name is empty.
func HashMMIdentifier[T ~string | ~[]byte](id T) (uint64, bool) {
	if len(id) == 0 {
		return 0, false
	}
	var digest [digestLen / 2]byte
	if len(id) == digestLen {
		if _, err := hex.Decode(digest[:], []byte(id)); err == nil {
			return binary.BigEndian.Uint64(digest[:]), true
		}
	}
	return xxh3.HashString(string(id)), true
}
