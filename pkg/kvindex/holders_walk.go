package kvindex

// advance handles the slots that hold all of the chain up to depth: it adds what each
// of them holds of the node's first m blocks. It reports whether any slot holds all m.
func (h *holders) advance(n *node, s state, depth, m uint32, dst []uint32) (alive bool) {
	// advanceCrowd overwrites its part of dst, so it comes first.
	if list := n.crowd.Load(); list != 0 {
		alive = h.advanceCrowd(list, depth, m, dst)
	}
	if c := min(s.cut(), m); c > 0 {
		if i := int(s.slot()); i < len(dst) && dst[i] == depth {
			dst[i] = depth + c
			alive = alive || c == m
		}
	}
	for i := range n.more {
		e := holder(n.more[i].Load())
		if c := min(e.cut(), m); c > 0 {
			if i := int(e.slot()); i < len(dst) && dst[i] == depth {
				dst[i] = depth + c
				alive = alive || c == m
			}
		}
	}
	return alive
}

// advanceCrowd is advance for the slots in the node's crowd, which list is.
func (h *holders) advanceCrowd(list, depth, m uint32, dst []uint32) (alive bool) {
	if int(list) >= len(h.units) {
		return false
	}
	// A writer may have put the list to other use by now, so dst bounds what is read of
	// it.
	most := uint32(len(dst)/groupSlots/unitWords + 1)
	words := min(uint32(h.units[list][0].Load()), uint32(len(h.units))-list, most) * unitWords
	for g := uint32(1); g < words; g++ {
		id := uint32(h.units[list+g/unitWords][g%unitWords].Load())
		from := int(g-1) * groupSlots
		if id == 0 || int(id) >= len(h.units) || from+groupSlots > len(dst) {
			continue
		}
		to := (*[groupSlots]uint32)(dst[from:])
		var top uint64
		if depth == 0 {
			top = h.units[id].copyTo(to, uint64(m))
		} else {
			top = h.units[id].addTo(to, depth, m)
		}
		alive = alive || top >= uint64(m)
	}
	return alive
}

// copyTo writes the cuts of a group, each at most m, to a part of the answer that is
// still zero. It returns the largest.
func (u *unit) copyTo(to *[groupSlots]uint32, m uint64) (top uint64) {
	all := m * 0x1_0001_0001_0001 // a word whose four slots hold all m blocks, as most slots in a crowd do
	for i := range unitWords {
		w := u[i].Load()
		if w == 0 {
			continue
		}
		if w == all {
			n := uint32(m)
			to[4*i], to[4*i+1], to[4*i+2], to[4*i+3] = n, n, n, n
			top = m
			continue
		}
		a, b, c, d := min(w&laneMask, m), min(w>>16&laneMask, m), min(w>>32&laneMask, m), min(w>>48, m)
		top = max(top, a, b, c, d)
		to[4*i] = uint32(a)
		to[4*i+1] = uint32(b)
		to[4*i+2] = uint32(c)
		to[4*i+3] = uint32(d)
	}
	return top
}

// addTo adds its cut, at most m, to each slot of the group that holds all up to depth.
// It returns the largest amount added.
func (u *unit) addTo(to *[groupSlots]uint32, depth, m uint32) (top uint64) {
	for i := range unitWords {
		w := u[i].Load()
		for j := 4 * i; w != 0; j++ {
			if c := min(uint32(w&laneMask), m); c > 0 && to[j%groupSlots] == depth {
				to[j%groupSlots] = depth + c
				top = max(top, uint64(c))
			}
			w >>= 16
		}
	}
	return top
}
