package kvindex

import (
	"strconv"

	"github.com/zeebo/xxh3"
)

// Picture is a multimodal object of a prompt: Length tokens from Offset on stand for it,
// and they are the same whatever it shows.
type Picture struct {
	Hash           uint64 // see HashMMIdentifier
	Offset, Length int    // tokens; Offset is below zero where a block begins within it
}

// AppendKeys appends what a block depends on of a picture that is in it, and whose Offset
// counts from the block's first token: which one it is and where it begins, as vLLM has it.
func (p Picture) AppendKeys(dst []uint64) []uint64 { return append(dst, p.Hash, uint64(p.Offset)) }

// AppendPictureHashes is AppendLocalHashes, or with eagle AppendPairHashes, for a prompt
// with pictures. They stand in the order of their offsets, and none within another.
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

// AppendKeyedHash appends the hash of the one block of tokens that depends on keys as well.
// It is hashed behind them, as two tokens for each key: in memory they look the same.
// What scratch points to is used as memory, and may be nil.
func AppendKeyedHash(dst []LocalHash, tokens []uint32, keys []uint64, seed uint64, scratch *[]uint32) []LocalHash {
	w := append((*scratch)[:0], tokens...)
	for _, k := range keys {
		w = append(w, uint32(k), uint32(k>>32)) //nolint:gosec // its two halves
	}
	*scratch = w
	return appendWindows(dst, w, len(w), len(w), seed)
}

// digestLen is how many hexadecimal digits the names have that vLLM gives to pictures.
const digestLen = 64

// HashMMIdentifier returns the hash of a multimodal object by its name, as Dynamo's router
// makes it: of a digest of 64 hexadecimal digits the first 16, of any other name XXH3 with
// the seed 0. It is false for no name.
func HashMMIdentifier[T ~string | ~[]byte](id T) (uint64, bool) {
	if len(id) == 0 {
		return 0, false
	}
	if len(id) != digestLen || !allHex(id) {
		return xxh3.HashString(string(id)), true
	}
	v, err := strconv.ParseUint(string(id[:16]), 16, 64)
	return v, err == nil
}

func allHex[T ~string | ~[]byte](s T) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f', c >= 'A' && c <= 'F':
		default:
			return false
		}
	}
	return true
}

// What PadValue makes: above every id of a vocabulary, and within 32 bits.
const (
	padShift = 1_000_000
	padMask  = 1<<30 - 1
)

// PadValue returns the token id that stands for each token of the multimodal object with
// the hash, as Dynamo's router and SGLang workers with its patch have it. SGLang by itself
// pads otherwise since 0.5.23 (docs/engines.md#event-pads).
func PadValue(hash uint64) uint32 { return padShift + uint32(hash&padMask) }
