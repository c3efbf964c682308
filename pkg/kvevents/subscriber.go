package kvevents

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Subscriber keeps an index in step with the workers of a snapshot: it attaches their
// ranks, follows the events of ranks that publish them, and detaches the ranks of workers
// that left. Its methods are safe for concurrent use.
type Subscriber struct {
	// set at construction, read-only
	cfg     Config
	plane   *plane // nil: no event plane is configured
	binders []*binder

	wake chan struct{} // of size 1: signals that next has changed

	// telling guards what Update was given and Run has not taken yet. No other lock is
	// taken under it.
	telling sync.Mutex
	next    *worker.Snapshot
	left    map[worker.ID]bool // workers missing from an update since Run last took one; they may be back

	// Written by the run goroutine, each as a new value that never changes.
	dialers atomic.Pointer[dialers]
	told    atomic.Pointer[map[worker.Rank]*feed]

	// mu guards ranks and saved. Only the run goroutine writes ranks, and holds mu only
	// for the write. mu is taken before a stream's own lock.
	mu    sync.Mutex
	ranks map[worker.Rank]*follower
	saved map[worker.Rank]*kept // from Resume, for ranks that have not appeared yet
}

// source is what a rank's stream depends on. If it changes, the stream starts anew.
type source struct {
	addr, replayAddr string // "" if there is none
	topic            string
	blockSize        uint32
	eagle            bool
	// clears: the publisher's first message says that its cache is empty, as SGLang's
	// does.
	clears   bool
	endpoint worker.Endpoint // another endpoint is another life of the worker
	// rank is what the engine calls the rank, and only says that the worker has no other.
	// Who is at the address of such a worker is this rank, whatever it calls itself.
	rank worker.DPRank
	only bool
}

// String is equal for sources with the same blocks, in every process.
func (s source) String() string {
	return fmt.Sprintf("%q %q %q %d %t %s", s.addr, s.replayAddr, s.topic, s.blockSize, s.eagle, s.endpoint)
}

// follower is a rank and the way in which its events come, if they come at all.
type follower struct {
	source source
	feed   *feed
	stream *stream    // nil: its events come through the event plane
	plane  *planeRank // nil: its events come through stream
	cancel context.CancelFunc
	done   chan struct{} // closed when the stream's goroutine has ended
}

// NewSubscriber returns a subscriber that follows no worker yet.
func NewSubscriber(cfg Config) (*Subscriber, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Subscriber{
		cfg:   cfg.withDefaults(),
		wake:  make(chan struct{}, 1),
		left:  make(map[worker.ID]bool),
		ranks: make(map[worker.Rank]*follower),
	}
	if s.cfg.plane() {
		s.plane = newPlane(&s.cfg)
	}
	s.dialers.Store(&dialers{})
	for _, a := range s.cfg.Bind {
		s.binders = append(s.binders, newBinder(s, a))
	}
	return s, nil
}

// Update sets the workers to follow, and does not wait until they are followed. If
// several updates come quickly, only the last counts, except that a worker that was
// missing in one of them is followed anew.
func (s *Subscriber) Update(snap *worker.Snapshot) {
	s.telling.Lock()
	if s.next != nil {
		for _, w := range s.next.Workers() {
			if snap.Worker(w.ID) == nil {
				s.left[w.ID] = true
			}
		}
	}
	s.next = snap
	s.telling.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run follows the workers until ctx ends, and returns nil when all its goroutines have
// ended. The index then keeps its blocks. Run must be called once.
func (s *Subscriber) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, b := range s.binders {
		wg.Go(func() { b.run(ctx) })
	}
	if s.plane != nil {
		for _, in := range s.plane.intakes {
			wg.Go(func() { in.run(ctx) })
		}
	}
	if waiting := s.waiting(); len(waiting) > 0 {
		wg.Go(func() { s.forget(ctx, waiting) })
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			s.reconcile(ctx, &wg)
		}
	}
}

// reconcile stops and starts following ranks, so that those of the latest snapshot are
// followed.
func (s *Subscriber) reconcile(ctx context.Context, wg *sync.WaitGroup) {
	s.telling.Lock()
	snap, left := s.next, s.left
	s.left = make(map[worker.ID]bool)
	s.telling.Unlock()
	want := make(map[worker.Rank]source)
	for _, w := range snap.Workers() {
		for dp := range w.DPSize {
			r := worker.Rank{ID: w.ID, DPRank: worker.DPRank(dp)}
			want[r] = sourceOf(w, dp)
		}
	}
	// All ranks that left, even if only for a moment, or changed are told to stop before
	// any is waited for.
	var stopped []worker.Rank
	for r, f := range s.ranks {
		if src, ok := want[r]; !ok || src != f.source || left[r.ID] {
			f.cancel()
			stopped = append(stopped, r)
		}
	}
	for _, r := range stopped {
		<-s.ranks[r].done
		if s.plane != nil {
			s.plane.remove(r)
		}
		s.ranks[r].leave()
		s.ranks[r].feed.setState(StateNone) // the rank may have no events when it is followed again
		// The blocks of a worker that left are dropped at once, but only when no
		// goroutine can add any (docs/behaviour.md#leaves-nothing).
		s.cfg.Index.Detach(r)
		s.mu.Lock()
		delete(s.ranks, r)
		s.mu.Unlock()
	}
	for r, src := range want {
		if s.ranks[r] == nil {
			s.cfg.Index.Attach(r)
			s.follow(ctx, r, src, wg)
		}
	}
	s.publishNames(snap)
}

func (s *Subscriber) follow(ctx context.Context, r worker.Rank, src source, wg *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{source: src, cancel: cancel, done: make(chan struct{})}
	if s.plane != nil && src.addr == "" {
		f.plane = newPlaneRank(&s.cfg, r)
		f.feed = &f.plane.feed
	} else {
		f.stream = newStream(&s.cfg, r, src)
		f.feed = &f.stream.feed
	}
	s.mu.Lock()
	s.ranks[r] = f
	if k := s.saved[r]; k != nil {
		delete(s.saved, r)
		f.resume(k)
	}
	if s.plane != nil { // as soon as Status shows a rank, its events are taken
		s.plane.add(r, f.plane)
	}
	s.mu.Unlock()
	if src.addr == "" && len(s.binders) == 0 {
		close(f.done)
		return
	}
	wg.Go(func() {
		defer close(f.done)
		f.stream.run(ctx)
	})
}

// publishNames publishes the ranks, for Tells and for the binders.
func (s *Subscriber) publishNames(snap *worker.Snapshot) {
	told := make(map[worker.Rank]*feed, len(s.ranks))
	for r, f := range s.ranks {
		told[r] = f.feed
	}
	s.dialers.Store(dialersOf(snap.Workers()))
	before := s.told.Swap(&told)
	for r, f := range told { // a hook of the rank's may have called Tells before this map was stored
		if !f.tells() || before != nil && (*before)[r] == f {
			continue
		}
		for changed := true; changed; { // while the hook is called, too
			st := f.snapshot().State
			s.cfg.Hooks.State(r, st)
			changed = f.snapshot().State != st
		}
	}
}

// Tells reports whether events tell what the rank holds: its worker names an address for
// them, or they have come through an event plane or from a publisher that dials; and not all
// of them were of a kind that cannot be used. Hooks.State is called when the answer changes.
// It takes no lock.
func (s *Subscriber) Tells(r worker.Rank) bool {
	told := s.told.Load()
	if told == nil {
		return false
	}
	f := (*told)[r]
	return f != nil && f.tells()
}

func (f *feed) tells() bool { return (f.named || f.heard.Load()) && !f.unusable.Load() }

// awaiting returns the stream of a rank whose publisher dials, or nil. r has the engine's
// number of the rank.
func (s *Subscriber) awaiting(r worker.Rank) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first := s.ranks[worker.Rank{ID: r.ID}]; first != nil {
		r.DPRank -= first.source.rank // a number below it becomes one that no rank has
	}
	if f := s.ranks[r]; f != nil && f.stream != nil && f.stream.adopted != nil {
		return f.stream
	}
	return nil
}

// Heard returns how many messages of a rank were applied since it was attached, whether the
// stream is in step, so that none is known to be missing, and whether they tell all that decides
// what the rank delivers: the engine has no KV cache groups whose events are not used.
func (s *Subscriber) Heard(r worker.Rank) (messages uint64, whole, all bool) {
	s.mu.Lock()
	f := s.ranks[r]
	s.mu.Unlock()
	if f == nil {
		return 0, false, true
	}
	f.feed.mu.Lock()
	defer f.feed.mu.Unlock()
	st := &f.feed.status
	return st.Messages, st.State == StateConnected, !st.OtherGroups
}

// Resync is called when a rank has turned out to hold less than its events say. Its stream is
// connected anew: so what was missed is known, as far as the publisher can replay it. With
// empty all blocks of the rank are dropped before. Of what was told before nothing is known
// then, since some of it is not there. It is not replayed: no message of it was missed, so a
// replay from the first message on would tell the same once more, and be as wrong.
func (s *Subscriber) Resync(r worker.Rank, empty bool) {
	if empty {
		s.empty(r, Doubted)
	}
	s.mu.Lock()
	f := s.ranks[r]
	s.mu.Unlock()
	if f != nil && f.stream != nil {
		select {
		case f.stream.again <- struct{}{}:
		default:
		}
	}
}

// Emptied is called when an engine says, elsewhere than in its events, that it has
// emptied its cache: vLLM does so when it goes to sleep. All blocks of the rank are
// dropped. If the index holds none, nothing happens.
func (s *Subscriber) Emptied(r worker.Rank) { s.empty(r, Emptied) }

func (s *Subscriber) empty(r worker.Rank, why Cause) {
	s.mu.Lock()
	f := s.ranks[r]
	s.mu.Unlock()
	if f == nil {
		return
	}
	f.inTurn(func() {
		st, ok := s.cfg.Index.Stats(r)
		// Blocks of an earlier process are not in the index before their proof.
		if !ok || f.feed.gone || f.feed.kept != nil || st.Blocks+st.Routed == 0 {
			return
		}
		f.feed.drop(why)
		if f.plane != nil {
			f.plane.cursor.Cleared()
			return
		}
		f.stream.decoder.Forget()
		f.stream.tracker.Cleared()
	})
}

// Channels returns the state of every channel of an event plane and of every
// address that publishers dial. The slice is the caller's.
func (s *Subscriber) Channels() []ChannelStatus {
	var out []ChannelStatus
	for _, b := range s.binders {
		out = append(out, b.snapshot())
	}
	if s.plane != nil {
		for _, in := range s.plane.intakes {
			out = append(out, in.snapshot())
		}
	}
	return out
}

// sourceOf returns where rank dp of the worker publishes. Without a port there is no
// address.
func sourceOf(w *worker.Worker, dp uint32) source {
	src := source{
		topic: w.KVEvents.Topic, blockSize: w.BlockSize, eagle: w.Eagle, clears: engines.Of(w.Engine).FirstClears, endpoint: w.Endpoint,
		rank: w.EngineRank + worker.DPRank(dp), only: w.DPSize == 1,
	}
	place := w.KVEvents.Of(worker.DPRank(dp))
	at := func(port uint16) string {
		if place.Host == "" || port == 0 {
			return ""
		}
		return net.JoinHostPort(place.Host, strconv.Itoa(int(port)))
	}
	src.addr, src.replayAddr = at(place.Port), at(place.ReplayPort)
	return src
}

// Status returns the state of every rank, sorted by rank. The slice is the
// caller's.
func (s *Subscriber) Status() []RankStatus {
	s.mu.Lock()
	out := make([]RankStatus, 0, len(s.ranks))
	for _, f := range s.ranks {
		out = append(out, f.feed.snapshot())
	}
	s.mu.Unlock()
	for i := range out {
		st, _ := s.cfg.Index.Stats(out[i].Rank)
		out[i].Blocks = st.Blocks
	}
	slices.SortFunc(out, func(a, b RankStatus) int { return a.Rank.Compare(b.Rank) })
	return out
}

func rankAttrs(r worker.Rank) []any {
	return []any{slog.Uint64(logkey.WorkerID, uint64(r.ID)), slog.Uint64(logkey.DPRank, uint64(r.DPRank))}
}
