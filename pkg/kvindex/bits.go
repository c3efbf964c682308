package kvindex

// bitSet is a set of small numbers.
type bitSet []uint64

func (b bitSet) has(n uint32) bool {
	w := int(n / 64)
	return w < len(b) && b[w]>>(n%64)&1 != 0
}

func (b bitSet) with(n uint32) bitSet {
	for int(n/64) >= len(b) {
		b = append(b, 0)
	}
	b[n/64] |= 1 << (n % 64)
	return b
}
