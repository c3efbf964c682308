package kvindex

import (
	"time"
)

// A sending is a prompt that was routed to a rank and is still believed to be held
// there; it is named by its last block. The prompts of a rank form a tree of blocks, in
// the nodes of the index. A block of it is held in the view Routed as long as a sending
// ends at the block or below it. Marks are kept only for the blocks where a sending
// ends or where the tree branches: every other block of it has one held block after it.
// Invariant: I7.

// routed is the state of one rank's view Routed.
type routed struct {
	slot   Slot
	blocks int
	marks  map[blockID]mark // nil: nothing was routed to the rank so far
}

// mark is kept for a block where a sending ends, or that is not followed by exactly one
// held block.
type mark struct {
	end  int32  // the sending that ends at the block, as an index of sendings.all; 0: none
	kids uint32 // how many held blocks follow the block
}

// sending is one routed prompt.
type sending struct {
	rank       *treeRank
	block      blockID
	guess      Guess
	until      time.Duration
	seq        uint64 // of Route calls; a higher one is later
	prev, next int32  // the list of all sendings with the same guess, latest first
}

// sendings has the sendings of all ranks. The first entries of all are the heads of the
// lists, one for each guess: their next is the latest sending, their prev the oldest.
type sendings struct {
	all    []sending
	free   []int32
	blocks int // routed blocks of all ranks
	seq    uint64
}

// firstSending is the lowest index that a sending may have: those below are heads of
// lists.
const firstSending = int32(numGuesses)

func newSendings() sendings {
	s := sendings{all: make([]sending, firstSending)}
	for i := range s.all {
		s.all[i].prev, s.all[i].next = int32(i), int32(i)
	}
	return s
}

func (s *sendings) unlink(e int32) {
	p, n := s.all[e].prev, s.all[e].next
	s.all[p].next, s.all[n].prev = n, p
}

// latest puts a sending at the front of the list for its guess.
func (s *sendings) latest(e int32) {
	head := int32(s.all[e].guess)
	n := s.all[head].next
	s.all[e].prev, s.all[e].next = head, n
	s.all[head].next, s.all[n].prev = e, e
}

func (s *sendings) get() int32 {
	if n := len(s.free); n > 0 {
		e := s.free[n-1]
		s.free = s.free[:n-1]
		return e
	}
	s.all = append(s.all, sending{})
	return int32(len(s.all) - 1)
}

func (s *sendings) drop(e int32) {
	s.unlink(e)
	s.all[e] = sending{}
	s.free = append(s.free, e)
}

// count returns how many sendings there are.
func (s *sendings) count() int { return len(s.all) - len(s.free) - int(firstSending) }

// oldest returns the sending that was routed longest ago, or 0 if there is none.
func (s *sendings) oldest() (e int32) {
	for head := range firstSending {
		if x := s.all[head].prev; x >= firstSending && (e == 0 || s.all[x].seq < s.all[e].seq) {
			e = x
		}
	}
	return e
}

// endBytes is what the end of a prompt costs apart from the prompt's blocks: a node,
// and the room in which its run may grow.
const endBytes = nodeBytes + 8*blockBytes

// routedPart is the divisor of the budget that gives the most that the view Routed of all
// ranks may use.
const routedPart = 8

// prompts is the view Routed of all ranks. It owns the sendings and the field sent of each
// treeRank.
type prompts struct {
	trie  *trie
	cfg   RouteConfig // read-only
	share int         // bytes of the budget that the view may use; read-only

	sent sendings
	time timeline

	// Scratch.
	fresh []Block
	gain  [1]Slot
}

// most is how many blocks of one prompt are noted.
func (p *prompts) most() int { return min(p.cfg.MaxBlocks, p.share/blockBytes) }

// tell tells the time.
func (p *prompts) tell(now time.Time) { p.time.tell(now) }

// open makes the view of a rank. It returns false if there is no slot for the view.
func (p *prompts) open(rk *treeRank, slots *Slots) bool {
	slot := slots.needView(rk.slot, Routed)
	if slot >= maxSlots {
		return false
	}
	rk.sent.marks, rk.sent.slot = make(map[blockID]mark), slot
	return true
}

// note notes that the chain was routed to a rank that has the view, and drops what is then
// too much.
func (p *prompts) note(rk *treeRank, chain []LocalHash, g Guess) {
	last, grown := p.lead(rk, chain)
	p.endAt(rk, last, grown, g)
	for over := p.over(); over > 0; over = p.over() {
		p.recall(p.sent.oldest(), over)
	}
}

// over returns how many routed blocks have to go so that MaxBlocks and the share
// of the memory are kept. Zero or less: none.
func (p *prompts) over() int {
	bytes := p.sent.blocks*blockBytes + p.sent.count()*endBytes - p.share
	return max(p.sent.blocks-p.cfg.MaxBlocks, (bytes+blockBytes-1)/blockBytes)
}

// lead makes the view hold every block of the chain. It returns the last block, and
// whether that block was not held before.
func (p *prompts) lead(rk *treeRank, chain []LocalHash) (last blockID, grown bool) {
	tr := p.trie
	p.gain[0] = rk.sent.slot
	var id nodeID
	var fork blockID // the last block of the chain that was held before; 0: none, or all were
	i := 0
	for i < len(chain) {
		kid, _ := tr.kids.find(id, uint64(chain[i]))
		if kid == 0 {
			break
		}
		n := &tr.nodes[kid]
		start, length := n.start(), int(n.load().length())
		m := uint32(tr.match(start, min(length, len(chain)-i), chain[i:]))
		if cut := tr.holders.cut(n, rk.sent.slot); cut < m {
			if !grown {
				fork, grown = last, true
				if cut > 0 {
					fork = start + blockID(cut) - 1
				}
			}
			for b := start + blockID(cut); b < start+blockID(m); b++ {
				tr.blocks.ref(b)
			}
			tr.holders.set(n, rk.sent.slot, m)
			p.count(rk, int(m-cut))
		}
		last, id, i = start+blockID(m)-1, kid, i+int(m)
		if int(m) < length {
			break
		}
	}
	if i < len(chain) && !grown {
		fork, grown = last, true
	}
	for rest := p.unnamed(chain[i:]); len(rest) > 0; {
		first, k := tr.extend(p.gain[:], last, rest)
		last, rest = first+blockID(k)-1, rest[k:]
		p.count(rk, k)
	}
	if grown && fork != 0 {
		m, marked := p.markOf(rk, fork)
		if !marked {
			m.kids = 1
		}
		m.kids++
		p.setMark(rk, fork, m)
	}
	return last, grown
}

func (p *prompts) count(rk *treeRank, n int) {
	rk.sent.blocks += n
	p.sent.blocks += n
	rk.stats.Routed = rk.sent.blocks
}

// unnamed returns the blocks of the chain without engine hashes. They are valid until
// the next call.
func (p *prompts) unnamed(chain []LocalHash) []Block {
	p.fresh = p.fresh[:0]
	for _, l := range chain {
		p.fresh = append(p.fresh, Block{Local: l})
	}
	return p.fresh
}

// endAt notes a sending that ends at the held block b. leaf says that no held block
// follows b. A sending that ended at b before is replaced: it is the same prompt,
// routed again.
func (p *prompts) endAt(rk *treeRank, b blockID, leaf bool, g Guess) {
	m, marked := p.markOf(rk, b)
	if !marked && !leaf {
		m.kids = 1
	}
	if m.end != 0 {
		p.sent.unlink(m.end)
	} else {
		m.end = p.sent.get()
	}
	p.sent.seq++
	s := &p.sent.all[m.end]
	*s = sending{rank: rk, block: b, guess: g, until: p.time.now + p.cfg.ttl(g), seq: p.sent.seq}
	p.sent.latest(m.end)
	p.setMark(rk, b, m)
}

// markOf returns the mark of a block, or false if it has none. It reads the block's
// flag first, which is cheaper than the map.
func (p *prompts) markOf(rk *treeRank, b blockID) (m mark, marked bool) {
	if !p.trie.blocks.flagged(b) {
		return m, false
	}
	m, marked = rk.sent.marks[b]
	return m, marked
}

func (p *prompts) setMark(rk *treeRank, b blockID, m mark) {
	if m.end == 0 && m.kids == 1 {
		delete(rk.sent.marks, b)
		return
	}
	p.trie.blocks.flag(b)
	rk.sent.marks[b] = m
}

func (p *prompts) isMarked(rk *treeRank, b blockID) bool {
	_, marked := p.markOf(rk, b)
	return marked
}
