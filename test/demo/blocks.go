package main

import (
	"encoding/binary"

	"github.com/seed-60ae5743/baton/test/enginesim"
)

// held returns how many leading blocks of the prompt are among a worker's
// cached blocks. It asks the worker's own list, so that what the plugin says
// can be compared with something it has not said itself.
func held(cached []enginesim.CachedBlock, prompt []uint32, size int) int {
	children := make(map[string]int64, len(cached))
	for _, b := range cached {
		children[blockKey(b.Parent, b.Tokens)] = b.Hash
	}
	var parent *int64
	n := 0
	for ; len(prompt) >= size; prompt = prompt[size:] {
		hash, ok := children[blockKey(parent, prompt[:size])]
		if !ok {
			break
		}
		parent = &hash
		n++
	}
	return n
}

// blockKey names a block by what stands before it and the tokens in it.
func blockKey(parent *int64, tokens []uint32) string {
	b := make([]byte, 1, 9+4*len(tokens))
	if parent != nil {
		b[0] = 1
		b = binary.BigEndian.AppendUint64(b, uint64(*parent))
	}
	for _, t := range tokens {
		b = binary.BigEndian.AppendUint32(b, t)
	}
	return string(b)
}
