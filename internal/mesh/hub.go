package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/replicas"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Lister returns the addresses of replicas; this process may be among them.
type Lister func(ctx context.Context) ([]string, error)

// Config is what a hub works with. All fields are needed, but for Credentials.
type Config struct {
	Self        string // the address of this process, as the others reach it
	Life        uint64
	Token       string                                            // names this process to the others
	Open        func(token string) (name, addr string, err error) // reads a token
	Credentials credentials.TransportCredentials                  // nil: plain text
	LifeAt      func(ctx context.Context, addr string) (life uint64, answers bool)
	Listers     map[string]Lister // by what they are, for logs

	Book    *load.Book
	Routed  func(worker.Rank, []kvindex.LocalHash) // another replica has sent this prompt there
	Aside   func() []worker.Rank                   // whom this process has set aside; never nil
	Suspect func(worker.Rank)                      // another replica has set the rank aside
	Learned func() (json.RawMessage, error)        // what this process has learned
	Learn   func(life uint64, learned json.RawMessage) error

	Counted func(outcome string) // of a message
	Log     *slog.Logger
}

// The outcomes of messages.
const (
	Sent    = "sent"
	Taken   = "taken"
	Stale   = "stale"   // of an old life, or older than what is known
	Garbage = "garbage" // it cannot be read
	Refused = "refused" // whoever called has no token of ours
	Dropped = "dropped" // its receiver was too slow: it gets all that is booked again
	CutOff  = "cut_off" // routed prompts that were left out
)

const (
	listEvery    = 2 * time.Second
	listWithin   = 5 * time.Second
	learnedEvery = 10 * time.Second
	checkWithin  = 500 * time.Millisecond
)

// Hub is the process's part of the mesh. Safe for concurrent use.
type Hub struct {
	cfg Config

	mu      sync.Mutex // guards this group
	roster  *replicas.Roster
	links   map[string]*link
	version uint64
	theirs  map[uint64]map[worker.Rank]struct{} // who is aside there, by life
	listed  map[string][]string                 // by Lister
	faults  map[string]string                   // of Listers
	ended   bool

	notes notes
	kick  chan struct{} // something beside the book has changed
	hung  chan struct{} // closes when no more is heard
	wg    sync.WaitGroup

	changed, all []load.Booked // owned by Run: memory of the messages before
}

// notes are what is to be told beside the book. Its lock is taken last, and by callers that hold others.
type notes struct {
	sync.Mutex // guards the fields below

	alone  bool // there is nobody to be told
	routed []replicas.Routed
	blocks int  // of routed
	news   bool // who is aside has changed since it was told
}

// New returns a hub.
func New(c Config) *Hub {
	return &Hub{
		cfg: c, roster: replicas.NewRoster(c.Self), hung: make(chan struct{}), links: map[string]*link{}, notes: notes{alone: true},
		theirs: map[uint64]map[worker.Rank]struct{}{}, listed: map[string][]string{}, faults: map[string]string{}, kick: make(chan struct{}, 1),
	}
}

// Meet says that there is a replica at an address, as far as legs tell.
func (h *Hub) Meet(addr string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.roster.Meet(addr, time.Now())
}

// NoteRouted notes that a prompt was sent to a rank that tells of no KV events. It does not keep chain.
func (h *Hub) NoteRouted(r worker.Rank, chain []kvindex.LocalHash) {
	n := &h.notes
	n.Lock()
	defer n.Unlock()
	chain = chain[:min(len(chain), replicas.MostChain)]
	if n.alone || len(chain) == 0 {
		return
	}
	if n.blocks+len(chain) > replicas.MostRouted {
		h.cfg.Counted(CutOff)
		return
	}
	n.routed, n.blocks = append(n.routed, replicas.Routed{Rank: r, Chain: slices.Clone(chain)}), n.blocks+len(chain)
	h.nudge()
}

// NoteHealth notes that this process has set somebody aside, or does so no more.
func (h *Hub) NoteHealth() {
	h.notes.Lock()
	defer h.notes.Unlock()
	h.notes.news = true
	h.nudge()
}

// take returns what is to be told, and whether who is aside has changed.
func (n *notes) take() (routed []replicas.Routed, news bool) {
	n.Lock()
	defer n.Unlock()
	routed, news = n.routed, n.news
	n.routed, n.blocks, n.news = nil, 0, false
	return routed, news
}

func (h *Hub) nudge() {
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// Ready reports whether a start need not wait for the other replicas any longer.
func (h *Hub) Ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.roster.Late(time.Now()) || len(h.listed) == len(h.cfg.Listers) && h.roster.Ready()
}

// Hang ends the streams of the others' messages, which would not end by themselves. It is for the end of a
// drain, once.
func (h *Hub) Hang() { close(h.hung) }

// Count returns how many other replicas are heard so far.
func (h *Hub) Count() map[string]int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.roster.Count()
}

// Mate is what is known of another replica, and of what it has booked.
type Mate struct {
	replicas.Mate
	Booked load.Heard
}

// Mates returns the other replicas, by address.
func (h *Hub) Mates() []Mate {
	h.mu.Lock()
	mates := h.roster.Mates()
	h.mu.Unlock()
	out := make([]Mate, 0, len(mates))
	for _, m := range mates {
		out = append(out, Mate{m, h.cfg.Book.Heard(m.Life)})
	}
	return out
}

// Faults returns why replicas could not be listed, by who was asked.
func (h *Hub) Faults() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for of, why := range h.faults {
		out = append(out, of+": "+why)
	}
	slices.Sort(out)
	return out
}

// Run tells and hears until ctx ends. It then tells the others that this process leaves.
func (h *Hub) Run(ctx context.Context) error {
	h.mu.Lock()
	h.roster.Begin(time.Now())
	h.mu.Unlock()
	for of, list := range h.cfg.Listers {
		h.wg.Go(func() { h.list(ctx, of, list) })
	}
	pulse := time.NewTicker(replicas.PulseEvery)
	defer pulse.Stop()
	gathered := time.NewTimer(0)
	defer gathered.Stop()
	var told, whole, learned time.Time
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-h.cfg.Book.Stirred():
			gathered.Reset(max(0, replicas.TellEvery-time.Since(told)))
		case <-h.kick:
			gathered.Reset(max(0, replicas.TellEvery-time.Since(told)))
		case <-gathered.C:
			told = time.Now()
			h.tell(false)
		case now := <-pulse.C:
			h.tick(ctx, now)
			told = now
			if now.Sub(whole) < replicas.WholeEvery {
				h.tell(true)
				continue
			}
			whole = now
			h.wholly(now.Sub(learned) >= learnedEvery)
			if now.Sub(learned) >= learnedEvery {
				learned = now
			}
		}
	}
	h.mu.Lock()
	h.ended = true
	for _, l := range h.links {
		l.stop()
	}
	h.mu.Unlock()
	h.wg.Wait()
	return ctx.Err()
}

// list asks a lister again and again.
func (h *Hub) list(ctx context.Context, of string, list Lister) {
	tick := time.NewTicker(listEvery)
	defer tick.Stop()
	for {
		within, cancel := context.WithTimeout(ctx, listWithin)
		addrs, err := list(within)
		cancel()
		if ctx.Err() != nil {
			return
		}
		h.took(ctx, of, addrs, err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (h *Hub) took(ctx context.Context, of string, addrs []string, err error) {
	h.mu.Lock()
	before := h.faults[of]
	if err != nil {
		h.faults[of] = err.Error()
		if h.listed[of] == nil {
			h.listed[of] = []string{}
		}
	} else {
		delete(h.faults, of)
		h.listed[of] = append([]string{}, addrs...)
		h.roster.List(slices.Concat(slices.Collect(maps.Values(h.listed))...), time.Now())
		h.linkLocked(ctx)
	}
	h.mu.Unlock()
	switch {
	case err != nil && before == "":
		h.cfg.Log.Warn("replicas cannot be listed, so the known ones stay in use; logged once", logkey.Source, of, logkey.Err, err)
	case err == nil && before != "":
		h.cfg.Log.Info("replicas are listed again", logkey.Source, of)
	}
}

// linkLocked makes a link to each replica that is known, and ends the others.
func (h *Hub) linkLocked(ctx context.Context) {
	if h.ended || ctx.Err() != nil {
		return
	}
	addrs := h.roster.Addresses()
	for addr, l := range h.links {
		if !slices.Contains(addrs, addr) {
			l.stop()
			delete(h.links, addr)
		}
	}
	for _, addr := range addrs {
		if h.links[addr] == nil {
			l := newLink(h, addr)
			h.links[addr] = l
			h.wg.Go(l.run)
		}
	}
	h.notes.Lock()
	h.notes.alone = len(h.links) == 0
	h.notes.Unlock()
}

// tick does what time demands.
func (h *Hub) tick(ctx context.Context, now time.Time) {
	h.mu.Lock()
	do := h.roster.Tick(now)
	h.linkLocked(ctx)
	h.mu.Unlock()
	h.do(ctx, do, now)
}

func (h *Hub) do(ctx context.Context, actions []replicas.Action, now time.Time) {
	for _, a := range actions {
		switch a.Do {
		case replicas.Forget:
			if h.forget(a.Life, now) {
				continue // it has come back meanwhile
			}
			h.cfg.Log.Info("a replica has ended, and its bookings with it", logkey.Replica, a.Address)
		case replicas.Fade:
			if a.Begins {
				h.cfg.Log.Warn("a replica sends nothing, so its bookings count less and less: check whether it hangs or is cut off", logkey.Replica, a.Address)
			}
			h.cfg.Book.Fade(a.Life, a.For, now)
		case replicas.Check:
			h.wg.Go(func() { h.check(ctx, a) })
		}
	}
}

// forget forgets what a process has told, unless it is there. Messages that came while it went may have left
// something, so it is called after each of those, too.
func (h *Hub) forget(life uint64, now time.Time) (lives bool) {
	h.mu.Lock()
	lives = h.roster.AddressOf(life) != ""
	if !lives {
		delete(h.theirs, life)
	}
	h.mu.Unlock()
	if !lives {
		h.cfg.Book.Forget(life, now)
		_ = h.cfg.Learn(life, nil)
	}
	return lives
}

// check finds out what is at the address of a replica whose messages have ended.
func (h *Hub) check(ctx context.Context, a replicas.Action) {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	found := replicas.Nothing
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", a.Address)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		found = replicas.Refused
	case err == nil:
		_ = conn.Close()
		if life, answers := h.cfg.LifeAt(ctx, a.Address); answers && life == a.Life {
			found = replicas.Same
		} else if answers {
			found = replicas.Another
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	h.mu.Lock()
	do := h.roster.Checked(a.Address, a.Life, found, time.Now())
	h.mu.Unlock()
	h.do(ctx, do, time.Now())
}

// tell sends what has changed, or, with always, that nothing has.
func (h *Hub) tell(always bool) {
	m := replicas.Message{Told: load.Told{Life: h.cfg.Life, Version: h.next()}}
	routed, news := h.notes.take()
	m.Routed = routed
	if news {
		m.Aside = h.cfg.Aside()
	}
	h.changed, m.Sum = h.cfg.Book.Tell(h.changed[:0], false, time.Now())
	m.Ranks = h.changed
	if always || len(m.Ranks) > 0 || len(m.Routed) > 0 || m.Aside != nil {
		h.send(&m)
	}
}

// wholly sends all that is booked, and, if asked to, what is learned.
func (h *Hub) wholly(learned bool) {
	m := h.whole(h.all[:0], learned)
	h.all = m.Ranks
	h.send(m)
}

// next returns the version of the next message. What is booked is read after that, so that a later message
// has nothing older.
func (h *Hub) next() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.version++
	return h.version
}

// send sends a message to all that listen.
func (h *Hub) send(m *replicas.Message) {
	h.mu.Lock()
	links := slices.Collect(maps.Values(h.links))
	h.mu.Unlock()
	if len(links) == 0 {
		return
	}
	b := h.encode(m)
	for _, l := range links {
		l.offer(b)
	}
}

// whole returns a message with all that is booked, in the memory of dst.
func (h *Hub) whole(dst []load.Booked, learned bool) *replicas.Message {
	m := &replicas.Message{Told: load.Told{Life: h.cfg.Life, Version: h.next(), Whole: true}, Aside: h.cfg.Aside()}
	if learned {
		var err error
		m.Learned, err = h.cfg.Learned()
		if err != nil {
			h.cfg.Log.Error("what is learned cannot be told", logkey.Err, err)
		}
	}
	m.Ranks, m.Sum = h.cfg.Book.Tell(dst, true, time.Now())
	return m
}

func (h *Hub) encode(m *replicas.Message) []byte {
	b, err := m.Encode()
	if err != nil { // only if what is learned is no JSON
		h.cfg.Log.Error("what is booked cannot be told", logkey.Err, err)
	}
	return b
}

// hear takes a message of a replica. It returns false if its life is over.
func (h *Hub) hear(addr string, m *replicas.Message) bool {
	now := time.Now()
	h.mu.Lock()
	lives := h.roster.AddressOf(m.Life) != ""
	h.mu.Unlock()
	if !lives {
		h.cfg.Counted(Stale)
		return false
	}
	fresh, held := h.cfg.Book.Hear(&m.Told, now)
	h.mu.Lock()
	known, back := h.roster.Took(addr, m.Life, m.Whole, fresh && held != m.Sum, now)
	var suspects []worker.Rank
	if known && m.Aside != nil {
		aside := make(map[worker.Rank]struct{}, len(m.Aside))
		for _, r := range m.Aside {
			if _, before := h.theirs[m.Life][r]; !before {
				suspects = append(suspects, r)
			}
			aside[r] = struct{}{}
		}
		h.theirs[m.Life] = aside
	}
	h.mu.Unlock()
	if back {
		h.cfg.Log.Info("a replica is heard again", logkey.Replica, addr)
	}
	for _, r := range suspects {
		h.cfg.Suspect(r)
	}
	for _, r := range m.Routed {
		h.cfg.Routed(r.Rank, r.Chain)
	}
	if m.Learned != nil {
		if err := h.cfg.Learn(m.Life, m.Learned); err != nil {
			h.cfg.Log.Debug("what a replica has learned cannot be read", logkey.Replica, addr, logkey.Err, err)
		}
	}
	lives = h.forget(m.Life, now)
	if lives && fresh {
		h.cfg.Counted(Taken)
	} else {
		h.cfg.Counted(Stale)
	}
	return lives
}

// errKnown ends a link to an address at which this process itself answers, or a replica that is known by
// another one.
var errKnown = errors.New("it is known by another address")
