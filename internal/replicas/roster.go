package replicas

import (
	"maps"
	"slices"
	"time"
)

// MostMates bounds the replicas that are known.
const MostMates = 64

const (
	// TellEvery is how long what changes is gathered. An idle replica tells of a change at once.
	TellEvery = 20 * time.Millisecond
	// WholeEvery is how often all that is booked is told.
	WholeEvery = 3 * time.Second
	// PulseEvery is how often a replica tells at least.
	PulseEvery = 500 * time.Millisecond
	// silentAfter is how long a replica may tell nothing until it is doubted.
	silentAfter = 2 * time.Second
	// A replica whose messages have ended is dead when its address has refused so many connections, or
	// another process has answered there.
	refusals = 2
	// keptUnlisted is how long a replica is kept that is in no list, and does not tell.
	keptUnlisted = 10 * time.Minute
	// startWithin is how long a start waits for the others at most.
	startWithin = 2 * time.Second
)

// Hearing is how far one hears of a replica.
type Hearing uint8

// The hearings, from the one of which least is known.
const (
	Unmet    Hearing = iota // nothing has come yet
	Unshared                // it does not know this service: an older version
	Away                    // it has ended
	Silent                  // what it has told fades
	Sharing
)

var hearings = [...]string{"not met", "not shared", "away", "silent", "sharing"}

func (h Hearing) String() string { return hearings[h] }

// Mate is what is known of another replica.
type Mate struct {
	Address string
	Name    string  // as its messages say; "" before the first
	Life    uint64  // of which the messages are; 0: none
	Hearing Hearing // how far it is heard
	Since   time.Time
	Heard   time.Time // when its newest message came
	Listed  bool

	// Late is how long the newest answer to a message of ours took; 0: none has come. Told says that
	// messages of ours reach it, and Error why they do not.
	Late  time.Duration
	Told  bool
	Error string

	// Differs is since when what is booked here for it is not what it says to have booked; zero: it is.
	Differs time.Time

	listed  bool      // it was listed once
	former  []uint64  // lives before this one, the newest last
	open    int       // streams on which its messages come
	closed  time.Time // when the last one ended
	refused int       // connections in a row, since then
	whole   bool      // a whole message of the life has come
	tried   bool      // a message of ours was tried to be sent
}

// Do is what is to be done about a replica.
type Do uint8

// The deeds.
const (
	Forget Do = iota // the bookings of the life have ended
	Fade             // the bookings of the life count less, after For
	Check            // ask at the address whether the life is there, and tell by Checked
)

// Action is something to be done.
type Action struct {
	Do      Do
	Address string
	Life    uint64
	For     time.Duration
	Begins  bool // to fade
}

// Roster knows the other replicas. Not safe for concurrent use. Use NewRoster.
type Roster struct {
	self    string
	aliases map[string]time.Time // addresses of processes that are known by another one, and until when that is believed
	began   time.Time            // zero: not yet
	ticked  time.Time
	mates   map[string]*Mate
}

// NewRoster returns a roster of a process that is reached at an address.
func NewRoster(self string) *Roster {
	return &Roster{self: self, aliases: map[string]time.Time{}, mates: map[string]*Mate{}}
}

// Begin says that the process begins to look for others.
func (r *Roster) Begin(now time.Time) { r.began, r.ticked = now, now }

// List says which addresses are listed now.
func (r *Roster) List(addrs []string, now time.Time) {
	for _, m := range r.mates {
		m.Listed = slices.Contains(addrs, m.Address)
	}
	for _, addr := range addrs {
		if m := r.mate(addr, now); m != nil {
			m.Listed, m.listed = true, true
		}
	}
}

// Meet says that there is a replica at an address.
func (r *Roster) Meet(addr string, now time.Time) { r.mate(addr, now) }

// mate returns what is known of a replica, and makes it known; nil: it is this process, or one too many.
func (r *Roster) mate(addr string, now time.Time) *Mate {
	m := r.mates[addr]
	if m != nil || addr == "" || addr == r.self || now.Before(r.aliases[addr]) {
		return m
	}
	delete(r.aliases, addr)
	if len(r.mates) >= MostMates && !r.evict() {
		return nil
	}
	m = &Mate{Address: addr, Since: now}
	r.mates[addr] = m
	return m
}

// evict makes room for a replica in the place of one that is in no list and was never heard.
func (r *Roster) evict() bool {
	for addr, m := range r.mates {
		if !m.Listed && m.Life == 0 {
			delete(r.mates, addr)
			return true
		}
	}
	return false
}

// Alias says that an address is another one of a process, which is this one or a known replica.
func (r *Roster) Alias(addr string, now time.Time) {
	delete(r.mates, addr)
	if len(r.aliases) < MostMates {
		r.aliases[addr] = now.Add(keptUnlisted)
	}
}

// AddressOf returns the address at which a process is the present one; "": there is none.
func (r *Roster) AddressOf(life uint64) string {
	for addr, m := range r.mates {
		if m.Life == life {
			return addr
		}
	}
	return ""
}

func (m *Mate) be(h Hearing, now time.Time) {
	if m.Hearing != h {
		m.Hearing, m.Since = h, now
	}
}

// Opened says that a stream of messages of a life has begun. It returns false if there is no room for
// another replica, or if another process has come after that life.
func (r *Roster) Opened(addr, name string, life uint64, now time.Time) (do []Action, ok bool) {
	m := r.mate(addr, now)
	if m == nil || slices.Contains(m.former, life) {
		return nil, false
	}
	if m.Life != life {
		if m.Life != 0 {
			do = append(do, Action{Do: Forget, Address: addr, Life: m.Life})
			m.replaced(m.Life)
		}
		m.Life, m.open, m.whole, m.Differs = life, 0, false, time.Time{}
	}
	m.Name, m.refused = name, 0
	m.open++
	m.Heard = now
	if m.Hearing != Silent || len(do) > 0 { // else it is heard again with its first message
		m.be(Sharing, now)
	}
	return do, true
}

// Took says that a message of a life has come; back says that it was silent before. It returns false if the
// life is not the address's present one, whose messages do not count any more.
func (r *Roster) Took(addr string, life uint64, whole, differs bool, now time.Time) (known, back bool) {
	m := r.mates[addr]
	if m == nil || m.Life != life {
		return false, false
	}
	back = m.Hearing == Silent
	m.Heard, m.whole = now, m.whole || whole
	m.be(Sharing, now)
	switch {
	case !differs:
		m.Differs = time.Time{}
	case m.Differs.IsZero():
		m.Differs = now
	}
	return true, back
}

// Closed says that a stream of messages has ended; left says that the replica has said so itself.
func (r *Roster) Closed(addr string, life uint64, left bool, now time.Time) []Action {
	m := r.mates[addr]
	if m == nil || m.Life != life {
		return nil
	}
	m.open--
	if m.open > 0 {
		return nil
	}
	m.closed, m.refused = now, 0
	if left {
		return r.end(m, now)
	}
	return nil
}

// formerKept is how many former lives of an address are known.
const formerKept = 8

func (m *Mate) replaced(life uint64) {
	m.former = append(m.former, life)
	m.former = m.former[max(0, len(m.former)-formerKept):]
}

func (r *Roster) end(m *Mate, now time.Time) []Action {
	do := []Action{{Do: Forget, Address: m.Address, Life: m.Life}}
	m.Life, m.whole, m.open, m.Differs = 0, false, 0, time.Time{}
	m.be(Away, now)
	return do
}

// Found is what was found at a replica's address.
type Found uint8

// What can be found.
const (
	Nothing Found = iota // no answer: the network may be the cause
	Refused              // nobody listens there
	Another              // another process answers
	Same                 // the process answers
)

// Checked tells what was found at the address of a life.
func (r *Roster) Checked(addr string, life uint64, f Found, now time.Time) []Action {
	m := r.mates[addr]
	if m == nil || m.Life != life || m.open > 0 {
		return nil
	}
	if f == Refused {
		m.refused++
	} else {
		m.refused = 0
	}
	if f == Another {
		m.replaced(life)
	}
	if f == Another || m.refused >= refusals {
		return r.end(m, now)
	}
	return nil
}

// Sent tells how sending messages to a replica goes: why not, if err is not "".
func (r *Roster) Sent(addr, err string, unknown bool, now time.Time) {
	m := r.mates[addr]
	if m == nil {
		return
	}
	m.tried, m.Told, m.Error = true, err == "", err
	if unknown && m.Life == 0 {
		m.be(Unshared, now)
	}
}

// Known reports whether a process that has answered at an address is known by another one.
func (r *Roster) Known(addr string, life uint64) bool {
	at := r.AddressOf(life)
	return at != "" && at != addr
}

// AnsweredIn says how long an answer of a replica took.
func (r *Roster) AnsweredIn(addr string, took time.Duration) {
	if m := r.mates[addr]; m != nil {
		m.Late, m.Told = took, true
	}
}

// Tick returns what is to be done now. Call it every PulseEvery.
func (r *Roster) Tick(now time.Time) (do []Action) {
	// Where this process has stood still, nobody was heard; that says nothing of the others.
	if still := now.Sub(r.ticked); still > 2*PulseEvery {
		for _, m := range r.mates {
			m.Heard, m.closed = m.Heard.Add(still), m.closed.Add(still)
		}
	}
	r.ticked = now
	for addr, m := range r.mates {
		quiet := now.Sub(m.Heard)
		switch {
		case m.Life == 0:
			if !m.Listed && now.Sub(m.Since) > keptUnlisted {
				delete(r.mates, addr)
			}
			continue
		case m.open == 0 && now.Sub(m.closed) >= PulseEvery:
			if !m.Listed && (m.listed && quiet > silentAfter || quiet > keptUnlisted) {
				do = append(do, r.end(m, now)...) // who lists the replicas says that it is gone, or nobody asks for it
				continue
			}
			do = append(do, Action{Do: Check, Address: addr, Life: m.Life})
		}
		if quiet >= silentAfter {
			do = append(do, Action{Fade, addr, m.Life, quiet - silentAfter, m.Hearing != Silent})
			m.be(Silent, now)
		}
	}
	return do
}

// Late reports whether a start has waited for the others long enough.
func (r *Roster) Late(now time.Time) bool {
	return !r.began.IsZero() && now.Sub(r.began) >= startWithin
}

// Ready reports whether each replica that is listed has told all that it has booked, or cannot be reached.
func (r *Roster) Ready() bool {
	for _, m := range r.mates {
		if m.Listed && !m.whole && !(m.tried && !m.Told) {
			return false
		}
	}
	return true
}

// Addresses returns those to which messages are to be sent.
func (r *Roster) Addresses() []string {
	return slices.Sorted(maps.Keys(r.mates))
}

// Count returns how many replicas are heard so far, of each hearing.
func (r *Roster) Count() map[string]int64 {
	out := make(map[string]int64, len(hearings))
	for _, h := range hearings {
		out[h] = 0
	}
	for _, m := range r.mates {
		out[m.Hearing.String()]++
	}
	return out
}

// Mates returns all replicas, by address.
func (r *Roster) Mates() []Mate {
	out := make([]Mate, 0, len(r.mates))
	for _, addr := range r.Addresses() {
		out = append(out, *r.mates[addr])
	}
	return out
}
