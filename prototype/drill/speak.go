package main

import "strconv"

// nextID is the token that the changed simulator says after a sequence: of the last eight ids
// and of how many there are, so that a token that is missing or comes twice changes all others.
func nextID(prompt, said []uint32) uint32 {
	at := func(i int) uint32 {
		if i < len(prompt) {
			return prompt[i]
		}
		return said[i-len(prompt)]
	}
	n := len(prompt) + len(said)
	h := uint32(2166136261) ^ uint32(n)
	for i := max(0, n-8); i < n; i++ {
		h = (h ^ at(i)) * 16777619
		h ^= h >> 13
	}
	return 1000 + h%200000
}

// piece is the text of a token.
func piece(id uint32) string { return " w" + strconv.Itoa(int(id)) + "é" }
