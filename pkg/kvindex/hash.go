package kvindex

import (
	"encoding/binary"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// LocalHash is the hash of one block's tokens under a salt, whatever stands
// before the block.
type LocalHash uint64

// SequenceHash is the hash of a block chained on its parent's: it names the
// whole prefix that ends with the block.
type SequenceHash uint64

// EngineHash is an engine's own name of a block, opaque to Baton. Signed forms
// are bit-cast, byte forms are cut to their last eight bytes (big-endian);
// that happens where the wire is decoded, nowhere else.
type EngineHash uint64

// baseSeed is the seed of block and sequence hashes in Dynamo's router.
const baseSeed = 1337

// Salt is what separates equal tokens that do not share KV. Empty strings mean
// absent.
type Salt struct {
	LoRA      string // adapter name
	CacheSalt string // the request's cache namespace
}

// Seed returns the seed for the salt's local hashes: 1337, plus
// XXH3_64(LoRA, 0), plus XXH3_64(CacheSalt, 1), wrapping.
func (s Salt) Seed() uint64 {
	seed := uint64(baseSeed)
	if s.LoRA != "" {
		seed += xxh3.HashString(s.LoRA)
	}
	if s.CacheSalt != "" {
		seed += xxh3.HashStringSeed(s.CacheSalt, 1)
	}
	return seed
}

// AppendLocalHashes appends the local hash of every whole block of tokens to
// dst and returns it. Tokens after the last whole block are left out, since no
// engine shares a partial block. A blockSize below 1 gives no hashes.
func AppendLocalHashes(dst []LocalHash, tokens []uint32, blockSize int, seed uint64) []LocalHash {
	return appendWindows(dst, tokens, blockSize, blockSize, seed)
}

// AppendPairHashes is AppendLocalHashes for workers whose blocks are of pairs
// of tokens (EAGLE): each block is hashed over its own tokens and the one
// behind them, without which it is not whole.
func AppendPairHashes(dst []LocalHash, tokens []uint32, blockSize int, seed uint64) []LocalHash {
	return appendWindows(dst, tokens, blockSize, blockSize+1, seed)
}

// appendWindows hashes every whole window of tokens, one each stride.
func appendWindows(dst []LocalHash, tokens []uint32, stride, window int, seed uint64) []LocalHash {
	if stride < 1 {
		return dst
	}
	var wide []byte // only on big-endian machines
	for ; len(tokens) >= window; tokens = tokens[stride:] {
		block := tokens[:window]
		if littleEndian() {
			// A token in memory is already the le32 that is hashed.
			b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(block))), 4*window)
			dst = append(dst, LocalHash(xxh3.HashSeed(b, seed)))
			continue
		}
		wide = wide[:0]
		for _, t := range block {
			wide = binary.LittleEndian.AppendUint32(wide, t)
		}
		dst = append(dst, LocalHash(xxh3.HashSeed(wide, seed)))
	}
	return dst
}

// littleEndian reports the machine's byte order; the compiler folds it.
func littleEndian() bool {
	b := [2]byte{1, 0}
	return binary.NativeEndian.Uint16(b[:]) == 1
}

// AppendSequenceHashes appends the sequence hashes of the chain to dst and
// returns it.
func AppendSequenceHashes(dst []SequenceHash, chain []LocalHash) []SequenceHash {
	var s SequenceHash
	for i, l := range chain {
		s = nextSequence(s, i > 0, l)
		dst = append(dst, s)
	}
	return dst
}

// nextSequence chains a block on its parent; a block without one is its own
// sequence: s0 = b0, s(i) = XXH3_64(le64(s(i-1)) || le64(b(i)), 1337).
func nextSequence(parent SequenceHash, hasParent bool, l LocalHash) SequenceHash {
	if !hasParent {
		return SequenceHash(l)
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(parent))
	binary.LittleEndian.PutUint64(b[8:], uint64(l))
	return SequenceHash(xxh3.HashSeed(b[:], baseSeed))
}

// AppendByteHashes appends the hash of every whole run of blockBytes bytes of
// text to dst and returns it. It serves the byte estimate only: these hashes
// match each other, never a block hashed from tokens.
func AppendByteHashes(dst []LocalHash, text []byte, blockBytes int, seed uint64) []LocalHash {
	if blockBytes < 1 {
		return dst
	}
	for ; len(text) >= blockBytes; text = text[blockBytes:] {
		dst = append(dst, LocalHash(xxh3.HashSeed(text[:blockBytes], seed)))
	}
	return dst
}
