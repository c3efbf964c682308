package load

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file lets the books of several replicas be as one. A book tells what it has booked itself, as what
// is there now and not as what has changed ([Book.Tell]), and takes what others tell ([Book.Hear]). So a
// message that is lost, doubled or late is made good by the next.

// Booked is what one replica has booked on a rank and has not finished.
type Booked struct {
	Rank worker.Rank
	Load
	// Queue are the oldest of the prompts that are still to be computed, oldest first; at most MostQueued.
	// Behind counts those after them.
	Queue  []Queued
	Behind int32
	// Waiting counts the answers whose first token is still to come.
	Waiting int32
}

// Queued is a prompt that is still to be computed.
type Queued struct {
	ID     uint64        // of the booking, in its process
	Tokens int64         // still to be computed
	Age    time.Duration // since it was booked
	Had    time.Duration // what the rank is believed to have spent on it
}

// MostQueued bounds Booked.Queue. Of the prompts behind those the sums alone are told.
const MostQueued = 16

// Told is a message of one replica.
type Told struct {
	Life    uint64 // of the process that has booked
	Version uint64 // greater in each message of a life
	Whole   bool   // on ranks that are not in Ranks nothing is booked
	Ranks   []Booked
	// Sum is a checksum of all that the replica has booked, these ranks included.
	Sum uint64
}

// other is what another replica has booked on a rank. Guarded by Book.mu.
type other struct {
	life    uint64
	version uint64
	told    Booked
	queue   []*Reservation // in entry.queue
	newest  uint64         // the highest number of a prompt that was in the queue

	// What of it counts now; see Fade.
	load            Load
	behind, waiting int32
}

// origin is what is known of another replica. Guarded by Book.mu.
type origin struct {
	newest uint64 // version
	whole  uint64 // the version of the newest whole message; older messages say nothing
	sum    uint64 // of what is held here
	fades  bool
}

// stirLocked notes that what this book has booked on a rank has changed.
func (b *Book) stirLocked(slot int32) {
	if e := &b.entries[slot]; !e.stirred {
		e.stirred = true
		b.stirred = append(b.stirred, slot)
		select {
		case b.kick <- struct{}{}:
		default:
		}
	}
}

// own is what this book itself has booked on the rank.
func (e *entry) own() Load {
	l := e.load
	for i := range e.others {
		l.add(&e.others[i].load, -1)
	}
	return l
}

// Tell appends to dst what this book itself has booked on each rank where that has changed since the last
// call, or, if whole, on each rank where something is booked, which leaves the changes for the next call. sum
// is the checksum of all that is booked; of a whole one, of what is returned. The memory of dst's queues is
// used again. A whole message is told in parts, so that no pick waits for long: what changes meanwhile is told
// by the next call.
func (b *Book) Tell(dst []Booked, whole bool, now time.Time) (out []Booked, sum uint64) {
	if whole {
		for from := 0; from >= 0; {
			dst, from = b.tellFrom(dst, from, now)
		}
		for i := range dst {
			sum ^= checksum(dst[i].Rank, &dst[i].Load)
		}
		return dst, sum
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tellLocked(now)
	for _, slot := range b.stirred {
		e := &b.entries[slot]
		e.stirred = false
		if !e.present {
			continue // its bookings went with it; others forget them with the rank, or by the next whole message
		}
		dst = b.bookedLocked(dst, e)
		l := &dst[len(dst)-1].Load
		b.ownSum ^= checksum(e.rank, &e.told) ^ checksum(e.rank, l)
		e.told = *l
	}
	b.stirred = b.stirred[:0]
	return dst, b.ownSum
}

// tellAtOnce is of how many ranks a part of a whole message is.
const tellAtOnce = 512

// tellFrom appends what is booked on some ranks, and returns where the next part begins; -1: nowhere.
func (b *Book) tellFrom(dst []Booked, from int, now time.Time) (out []Booked, next int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tellLocked(now)
	for i := from; i < len(b.entries); i++ {
		if i == from+tellAtOnce {
			return dst, i
		}
		if e := &b.entries[i]; e.present && e.own() != (Load{}) {
			dst = b.bookedLocked(dst, e)
		}
	}
	return dst, -1
}

func (b *Book) bookedLocked(dst []Booked, e *entry) []Booked {
	if len(dst) < cap(dst) {
		dst = dst[:len(dst)+1]
	} else {
		dst = append(dst, Booked{})
	}
	x := &dst[len(dst)-1]
	*x = Booked{Rank: e.rank, Load: e.own(), Queue: x.Queue[:0]}
	x.Waiting = min(int32(e.answers.waiting), x.DecodeRequests) //nolint:gosec // as many as bookings
	if x.PrefillTokens == 0 {
		return dst
	}
	e.queue.share(b.now)
	b.writeLocked(e)
	own := e.queue.n
	for i := range e.others {
		own -= len(e.others[i].queue)
	}
	for r := e.queue.head; r != nil && len(x.Queue) < MostQueued; r = r.after {
		if r.life == 0 {
			x.Queue = append(x.Queue, Queued{ID: r.number, Tokens: r.load.PrefillTokens, Age: b.now - r.since, Had: r.had})
		}
	}
	x.Behind = int32(max(0, own-len(x.Queue))) //nolint:gosec // as many as bookings
	return dst
}

// checksum is of one rank; those of several are combined by exclusive or.
func checksum(r worker.Rank, l *Load) uint64 {
	if *l == (Load{}) {
		return 0
	}
	h := uint64(14695981039346656037)
	for _, x := range [...]uint64{
		uint64(r.ID), uint64(r.DPRank), uint64(l.PrefillTokens), uint64(l.PrefillBlocks), uint64(l.PrefillRequests), uint64(l.DecodeBlocks), uint64(l.DecodeRequests), //nolint:gosec // bits
	} {
		h = (h ^ x) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return h
}

// Hear takes what another replica has told. fresh is false if the message is older than another one of that
// life; of such a one nothing may be of use. sum is the checksum of what is held for the replica now. Ranks
// that this book does not know are left out: the next whole message has them again.
func (b *Book) Hear(m *Told, now time.Time) (fresh bool, sum uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tellLocked(now)
	b.growLocked()
	o := b.origins[m.Life]
	if o == nil {
		o = new(origin)
		b.origins[m.Life] = o
	}
	if m.Version <= o.whole {
		return false, o.sum
	}
	fresh = m.Version > o.newest
	if fresh {
		o.newest = m.Version
	}
	b.reviveLocked(m.Life, o)
	for i := range m.Ranks {
		x := &m.Ranks[i]
		slot := b.slotLocked(x.Rank)
		if slot < 0 {
			continue
		}
		e := &b.entries[slot]
		at := e.other(m.Life)
		if at < 0 {
			at = len(e.others)
			e.others = append(e.others, other{life: m.Life})
		}
		if k := &e.others[at]; k.version < m.Version {
			k.version = m.Version
			o.sum ^= checksum(x.Rank, &k.told.Load) ^ checksum(x.Rank, &x.Load)
			queue := append(k.told.Queue[:0], x.Queue...)
			k.told = *x
			k.told.Queue = queue
			b.countLocked(e, k, &k.told, true)
		}
	}
	if m.Whole {
		o.whole = m.Version
		b.clearLocked(m.Life, o, func(k *other) bool { return k.version < m.Version }, true)
	}
	return fresh, o.sum
}

// reviveLocked makes all count again that a replica has told, after it was silent.
func (b *Book) reviveLocked(life uint64, o *origin) {
	if !o.fades {
		return
	}
	o.fades = false
	for e, k := range b.toldByLocked(life) {
		b.countLocked(e, k, &k.told, false)
	}
}

// toldByLocked are the ranks of which a replica has told, and what it has. The loop may take that away.
func (b *Book) toldByLocked(life uint64) iter.Seq2[*entry, *other] {
	return func(yield func(*entry, *other) bool) {
		for i := range b.entries {
			e := &b.entries[i]
			if at := e.other(life); at >= 0 && !yield(e, &e.others[at]) {
				return
			}
		}
	}
}

// clearLocked forgets what the origin had booked on the ranks that are meant.
func (b *Book) clearLocked(life uint64, o *origin, meant func(*other) bool, ended bool) {
	for e, k := range b.toldByLocked(life) {
		if meant(k) {
			o.sum ^= checksum(e.rank, &k.told.Load)
			k.told = Booked{}
		}
		if k.told.Load == (Load{}) {
			b.countLocked(e, k, &Booked{}, ended)
			e.others = slices.DeleteFunc(e.others, func(k other) bool { return k.life == life })
		}
	}
}

// Forget forgets all that a replica has booked.
func (b *Book) Forget(life uint64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o := b.origins[life]; o != nil {
		b.tellLocked(now)
		b.clearLocked(life, o, func(*other) bool { return true }, false)
		delete(b.origins, life)
	}
}

// Fade lets what a silent replica has told count less: it may go on, so its bookings neither stay for ever
// nor end at once. silent is for how long it has not been heard. Its prompts and answers become less over the
// time that those of this book lately took. The next message of the replica makes all of it count again.
func (b *Book) Fade(life uint64, silent time.Duration, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.origins[life]
	if o == nil {
		return
	}
	o.fades = true
	b.tellLocked(now)
	b.growLocked()
	prompts, answers := b.lasts[0].part(silent), b.lasts[1].part(silent)
	less := func(n int64, part float64) int64 { return int64(math.Round(float64(n) * part)) }
	for e, k := range b.toldByLocked(life) {
		x := Booked{Rank: e.rank, Load: Load{
			PrefillTokens: less(k.told.PrefillTokens, prompts), PrefillBlocks: less(k.told.PrefillBlocks, prompts),
			PrefillRequests: int32(less(int64(k.told.PrefillRequests), prompts)),
			DecodeBlocks:    less(k.told.DecodeBlocks, answers), DecodeRequests: int32(less(int64(k.told.DecodeRequests), answers)),
		}, Behind: int32(less(int64(k.told.Behind), prompts)), Waiting: int32(less(int64(k.told.Waiting), answers))}
		left := x.PrefillTokens
		for _, q := range k.told.Queue {
			q.Tokens = min(less(q.Tokens, prompts), left)
			if q.Tokens > 0 {
				x.Queue, left = append(x.Queue, q), left-q.Tokens
			}
		}
		b.countLocked(e, k, &x, false)
	}
}

// OwnSum returns the checksum of all that this book itself has booked.
func (b *Book) OwnSum() (sum uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.entries {
		if e := &b.entries[i]; e.present {
			own := e.own()
			sum ^= checksum(e.rank, &own)
		}
	}
	return sum
}

// Stirred gets a value when something is there for Tell to tell.
func (b *Book) Stirred() <-chan struct{} { return b.kick }

// Heard is what is known of another replica's bookings.
type Heard struct {
	Load
	Sum   uint64 // of what it has told
	Fades bool
}

// Heard returns what the replica has booked, as far as it counts here.
func (b *Book) Heard(life uint64) (h Heard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.origins[life]
	if o == nil {
		return h
	}
	h.Sum, h.Fades = o.sum, o.fades
	for _, k := range b.toldByLocked(life) {
		h.add(&k.load, 1)
	}
	return h
}

func (e *entry) other(life uint64) int {
	for i := range e.others {
		if e.others[i].life == life {
			return i
		}
	}
	return -1
}

// countLocked makes x what counts of another replica's bookings on a rank. ended says that what is not in x
// any more has ended, and is not only believed less.
func (b *Book) countLocked(e *entry, k *other, x *Booked, ended bool) {
	if left := k.load.DecodeRequests - x.DecodeRequests; left > 0 {
		e.correction.leave(int64(left))
	}
	e.load.add(&k.load, -1)
	e.behind += x.Behind - k.behind
	k.load, k.behind, k.waiting = x.Load, x.Behind, x.Waiting
	e.load.add(&k.load, 1)
	if e.load.DecodeRequests == 0 {
		e.correction = correction{}
		e.agree(b.now)
	}
	has := func(id uint64) int { return slices.IndexFunc(x.Queue, func(q Queued) bool { return q.ID == id }) }
	k.queue = slices.DeleteFunc(k.queue, func(r *Reservation) bool {
		at := has(r.number)
		if at >= 0 {
			r.load.PrefillTokens = x.Queue[at].Tokens
			return false
		}
		if ended && len(x.Queue) < MostQueued { // else it may only be told no more
			e.queue.ended(r, b.now)
		} else {
			e.queue.remove(r, b.now)
		}
		return true
	})
	for i := range x.Queue {
		q := &x.Queue[i]
		if slices.ContainsFunc(k.queue, func(r *Reservation) bool { return r.number == q.ID }) {
			continue
		}
		r := &Reservation{life: k.life, number: q.ID, since: b.now - q.Age, load: Load{PrefillTokens: q.Tokens}}
		e.queue.insert(r, q.Had, b.now)
		k.queue = append(k.queue, r)
		if q.ID <= k.newest {
			continue // it has come before
		}
		k.newest = q.ID
		if e.flow == nil { // it was not picked here
			e.flow = b.flowLocked(e, e.worker.Role)
		}
		b.computesLocked(e, q.Tokens)
	}
	b.writeLocked(e)
}

// leave takes the part of the correction that came with n answers of other replicas which have ended, as far
// as they ran when the report came.
func (c *correction) leave(n int64) {
	n = min(n, c.others)
	c.others -= n
	if n == 0 {
		return
	}
	if c.of <= n {
		*c = correction{}
		return
	}
	c.blocks *= float64(c.of-n) / float64(c.of)
	c.of -= n
}

// lasting is how long bookings of one kind lately were held, in seconds; 0: not known.
type lasting float64

const (
	lastingMemory = 32   // bookings over which it is averaged
	lastingAtOnce = 30.0 // what is believed before the first has ended
)

func (l *lasting) ended(after time.Duration) {
	if s := lasting(after.Seconds()); *l == 0 {
		*l = s
	} else {
		*l += (s - *l) / lastingMemory
	}
}

// part is how much is left after a time.
func (l lasting) part(after time.Duration) float64 {
	return math.Exp(-after.Seconds() / max(cmp.Or(float64(l), lastingAtOnce), 0.1))
}
