package sglang

import (
	"fmt"
	"sync"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// rooms is the rendezvous of one prefill worker: the prefill requests that are here, and
// the decode requests that have asked for them. Safe for concurrent use. mu is held for
// map operations only; callbacks run without it.
type rooms struct {
	mu      sync.Mutex // guards prefill and decode
	prefill map[int64]*prefillHalf
	decode  map[int64]*decodeHalf
	violate func(core.Violation)
	group   string // of the prefill worker
}

// prefillHalf is a prefill request, from entering its room until its KV is taken or given
// up.
type prefillHalf struct {
	room   int64
	seq    uint64
	digest uint64
	rank   int
	ready  bool // KV is computed; guarded by rooms.mu
	cached int  // prefill's cached tokens, set with ready

	aborted bool // what decode is given is of no prompt

	arrived chan struct{} // one token each time a decode half joins or leaves
	done    chan error    // buffered: gets nil when the KV was taken, else the error that prevents it
}

// decodeHalf is a decode request that waits for the KV of a room.
type decodeHalf struct {
	reg  linkMessage
	from *linkPeer
}

func newRooms(group string, violate func(core.Violation)) *rooms {
	return &rooms{group: group, prefill: make(map[int64]*prefillHalf), decode: make(map[int64]*decodeHalf), violate: violate}
}

// enter lets a prefill request enter its room. A room in use is refused: requests in
// flight must have different rooms (docs/engines.md#sglang-room).
func (r *rooms) enter(p *prefillHalf) error {
	r.mu.Lock()
	if old := r.prefill[p.room]; old != nil {
		r.mu.Unlock()
		msg := fmt.Sprintf("Prefill transfer failed: bootstrap room %d is in use by another request", p.room)
		r.violate(core.Violation{Kind: "room_reused", Seq: p.seq, Room: p.room, Detail: msg})
		return &core.APIError{Status: 500, Reason: "pairing", Msg: msg}
	}
	r.prefill[p.room] = p
	d := r.decode[p.room]
	after := r.matchLocked(p, d)
	r.mu.Unlock()
	after()
	return nil
}

// ask registers a decode half.
func (r *rooms) ask(d *decodeHalf) {
	r.mu.Lock()
	if r.decode[d.reg.Room] != nil {
		r.mu.Unlock()
		msg := fmt.Sprintf("Decode handshake failed: bootstrap room %d is in use by another request", d.reg.Room)
		r.violate(core.Violation{Kind: "room_reused", Room: d.reg.Room, Detail: msg})
		d.from.send(linkMessage{Type: msgFailed, Room: d.reg.Room, Call: d.reg.Call, Error: msg, Violation: true})
		return
	}
	r.decode[d.reg.Room] = d
	after := func() {}
	if p := r.prefill[d.reg.Room]; p != nil {
		after = r.matchLocked(p, d)
	}
	r.mu.Unlock()
	after()
}

// matchLocked is called whenever p or its decode half d has changed; a nil d is not
// there. It returns what the caller must do without the lock.
func (r *rooms) matchLocked(p *prefillHalf, d *decodeHalf) func() {
	select {
	case p.arrived <- struct{}{}:
	default:
	}
	if d == nil {
		return func() {}
	}
	kind, msg := mismatch(p, d)
	if other := core.OtherGroup(r.group, d.reg.Group); other != "" {
		kind, msg = core.MixedPair, other
	}
	if msg != "" {
		delete(r.prefill, p.room)
		delete(r.decode, p.room)
		return func() {
			r.violate(core.Violation{Kind: kind, Seq: p.seq, Room: p.room, Detail: msg})
			p.done <- &core.APIError{Status: 500, Reason: "pairing", Msg: "Prefill transfer failed: " + msg}
			d.from.send(linkMessage{Type: msgFailed, Room: p.room, Call: d.reg.Call, Error: "Decode handshake failed: " + msg, Violation: true})
		}
	}
	if !p.ready {
		return func() {}
	}
	delete(r.prefill, p.room)
	delete(r.decode, p.room)
	return func() {
		p.done <- nil
		d.from.send(linkMessage{Type: msgKV, Room: p.room, Call: d.reg.Call, Cached: p.cached, Aborted: p.aborted})
	}
}

// mismatch returns why the halves do not belong together, or "".
func mismatch(p *prefillHalf, d *decodeHalf) (kind, msg string) {
	if d.reg.Digest != p.digest {
		return "prompt_mismatch", fmt.Sprintf("room %d: prefill has prompt %016x, decode has %016x", p.room, p.digest, d.reg.Digest)
	}
	if d.reg.Rank != p.rank {
		return "rank_mismatch", fmt.Sprintf("room %d: prefill runs on rank %d, decode expects rank %d", p.room, p.rank, d.reg.Rank)
	}
	return "", ""
}

// setReady notes that the KV of p is computed. cached is how many of its tokens were
// cached.
func (r *rooms) setReady(p *prefillHalf, cached int) {
	r.mu.Lock()
	if r.prefill[p.room] != p {
		r.mu.Unlock()
		return
	}
	p.ready, p.cached = true, cached
	after := r.matchLocked(p, r.decode[p.room])
	r.mu.Unlock()
	after()
}

// rankOf returns the rank of the prefill half in a room.
func (r *rooms) rankOf(room int64) (rank int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.prefill[room]
	if p == nil {
		return 0, false
	}
	return p.rank, true
}

// decodeHere reports whether a decode half waits for p.
func (r *rooms) decodeHere(p *prefillHalf) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.decode[p.room] != nil
}

// leave removes a prefill half. A decode half in the room is told nothing and waits on,
// as in the engine.
func (r *rooms) leave(p *prefillHalf) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.prefill[p.room] == p {
		delete(r.prefill, p.room)
	}
}

// leaveAlone removes p if no decode half waits for it and p is not over. False means that
// it did not.
func (r *rooms) leaveAlone(p *prefillHalf) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.prefill[p.room] != p || r.decode[p.room] != nil {
		return false
	}
	delete(r.prefill, p.room)
	return true
}

// drop removes a decode half. call identifies the request, so that a late cancel does not
// remove a newer one.
func (r *rooms) drop(from *linkPeer, room int64, call uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.decode[room]; d != nil && d.from == from && d.reg.Call == call {
		r.dropLocked(room)
	}
}

func (r *rooms) dropLocked(room int64) {
	delete(r.decode, room)
	if p := r.prefill[room]; p != nil {
		select {
		case p.arrived <- struct{}{}:
		default:
		}
	}
}

// dropAll removes every decode half of a peer whose connection ended.
func (r *rooms) dropAll(from *linkPeer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for room, d := range r.decode {
		if d.from == from {
			r.dropLocked(room)
		}
	}
}

// counts returns the number of prefill halves without a decode half, of prefill halves
// with one, and of decode halves without a prefill half.
func (r *rooms) counts() (alone, met, askers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for room := range r.prefill {
		if r.decode[room] != nil {
			met++
		} else {
			alone++
		}
	}
	return alone, met, len(r.decode) - met
}
