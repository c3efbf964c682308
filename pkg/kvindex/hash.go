package kvindex

import (
	"encoding/binary"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// LocalHash is the hash of one block's tokens under a salt. It does not depend on what
// stands before the block.
type LocalHash uint64

// EngineHash is an engine's own name of a block, opaque to Baton. The decoders of the
// wire formats make it: they bit-cast signed forms, and cut byte forms to the last
// eight bytes (big-endian).
type EngineHash uint64

// baseSeed is the seed of block hashes in Dynamo's router.
const baseSeed = 1337

// Salt separates prompts with equal tokens that must not share KV. An empty string
// means that the prompt has no such salt.
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

// AppendLocalHashes appends the local hash of every whole block of tokens to dst and
// returns dst. Tokens after the last whole block are left out, since no engine shares a
// partial block. A blockSize below 1 gives no hashes.
func AppendLocalHashes(dst []LocalHash, tokens []uint32, blockSize int, seed uint64) []LocalHash {
	return appendWindows(dst, tokens, blockSize, blockSize, seed)
}

// AppendPairHashes is AppendLocalHashes for workers whose blocks are identified by
// pairs of tokens (EAGLE): each block is hashed over its own tokens and the next token.
// A block without a next token is left out.
func AppendPairHashes(dst []LocalHash, tokens []uint32, blockSize int, seed uint64) []LocalHash {
	return appendWindows(dst, tokens, blockSize, blockSize+1, seed)
}

// appendWindows hashes whole windows of tokens, whose beginnings are stride tokens
// apart.
func appendWindows(dst []LocalHash, tokens []uint32, stride, window int, seed uint64) []LocalHash {
	if stride < 1 {
		return dst
	}
	var wide []byte // only on big-endian machines
	for ; len(tokens) >= window; tokens = tokens[stride:] {
		block := tokens[:window]
		if littleEndian() {
			// In memory a token already has the little-endian form that is hashed.
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

// littleEndian reports the machine's byte order. The compiler makes it a constant.
func littleEndian() bool {
	b := [2]byte{1, 0}
	return binary.NativeEndian.Uint16(b[:]) == 1
}

// AppendByteHashes appends the hash of every whole run of blockBytes bytes of text to
// dst and returns dst. It serves the estimate from bytes only: these hashes match each
// other, never the hash of a block of tokens.
func AppendByteHashes(dst []LocalHash, text []byte, blockBytes int, seed uint64) []LocalHash {
	if blockBytes < 1 {
		return dst
	}
	for ; len(text) >= blockBytes; text = text[blockBytes:] {
		dst = append(dst, LocalHash(xxh3.HashSeed(text[:blockBytes], seed)))
	}
	return dst
}
